"""`loopctl show`: what a turn cost, what the model saw, and whether that is what was sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopd.testing.replies import Call, ask, say
from tests.cli.conftest import Stage
from tests.e2e.harness import endpoint

pytestmark = pytest.mark.process


def test_show_tells_cost_calls_sources_and_that_the_request_is_the_recorded_one(
    stage: Stage, tmp_path: Path
) -> None:
    with endpoint([ask(Call("read_file", {"path": "no\x1b[2J"})), say("done")]) as (model, _):
        sid = stage.daemon.chat(model.base_url, workspace=str(tmp_path))
        stage.daemon.call("send", sid, text="read it")
        stage.daemon.until(sid, "turn.completed")
        first, second = (request.sha256 for request in model.requests)
    shown = stage.ctl("show", f"{sid}@1").out
    assert "step 1 (" in shown
    assert "tokens in, " in shown
    seen = stage.ctl("show", f"{sid}@1", "--prompt", "--step", "2").out
    assert '→ read_file({"path": "no\\u001b[2J"})' in seen
    assert "[user, human]\nread it\n" in seen
    assert f"request sha256 {second}, as recorded" in seen
    assert f"request sha256 {first}, as recorded" in stage.ctl("show", f"{sid}@1", "--prompt").out
