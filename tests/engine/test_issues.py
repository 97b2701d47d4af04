"""The Markdown file of an abort: in the workspace, whole, also when the daemon did not come to write it."""

from __future__ import annotations

from pathlib import Path

import pytest

from loopd.core.conversation import StepDone, TurnEnd, TurnRequest
from loopd.engine import issues
from loopd.engine.ports import TurnHost
from loopd_protocol import commands as cm
from loopd_protocol import events as ev
from loopd_protocol.events import ToolCall
from tests.engine.stage import Stage, stage

pytestmark = pytest.mark.anyio


async def red(_request: TurnRequest, host: TurnHost) -> TurnEnd:
    call = ToolCall(id="c", name="bash", args={"command": "npm test"}, ok=False, exit_code=1, result="FAIL 1")
    for _ in range(5):
        if (await host.step(StepDone(text="again", calls=(call,)))).stop:
            return TurnEnd(outcome="stopped_by_rule")
    return TurnEnd(outcome="completed")


async def an_abort(on: Stage, workspace: Path, path: str = "notes/{id}.md") -> str:
    on.plays["red"] = red
    sid = await on.new("red", preset="hardened", workspace=str(workspace), set={"stop.issue_file": path})
    await on.send(sid)
    await on.until(lambda: on.router.rows[sid].status != "live")
    return sid


async def test_an_abort_leaves_one_whole_file_and_nothing_else(tmp_path: Path) -> None:
    async with stage() as on:
        sid = await an_abort(on, tmp_path)
        (issue,) = await on.decoded(sid, ev.IssueWritten)
        place = tmp_path / "notes" / f"{issue.id}.md"
        await on.until(lambda: place.exists() and not issues._writing)
        text = place.read_text()
        assert "same_error" in text
        assert f"loopctl resume {sid}" in text
        assert list(place.parent.iterdir()) == [place]


async def test_a_file_that_the_last_daemon_did_not_write_is_written_at_the_next_boot(tmp_path: Path) -> None:
    async with stage() as on:
        sid = await an_abort(on, tmp_path)
        (issue,) = await on.decoded(sid, ev.IssueWritten)
        place = tmp_path / "notes" / f"{issue.id}.md"
        await on.until(lambda: place.exists() and not issues._writing)
        before = place.read_text()
        assert await issues.file_missing(on.store) == 0
        place.unlink()
        assert await issues.file_missing(on.store) == 1
        await on.until(lambda: place.exists() and not issues._writing)
        assert place.read_text() == before
        assert len(await on.decoded(sid, ev.IssueWritten)) == 1, "the record itself is written once"


async def test_a_link_that_leads_out_of_the_workspace_is_not_followed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    outside, workspace = tmp_path / "outside", tmp_path / "work"
    outside.mkdir()
    workspace.mkdir()
    (workspace / "notes").symlink_to(outside)
    async with stage() as on:
        await an_abort(on, workspace)
        await on.until(lambda: "issue not filed" in caplog.text)
    assert list(outside.iterdir()) == []


async def test_a_report_and_a_new_run_through_the_dispatcher() -> None:
    async with stage() as on:
        on.plays["red"] = red
        sid = await on.new("red", preset="hardened", name="one")
        await on.send(sid)
        await on.until(lambda: on.router.rows[sid].status != "live")
        answer = await on.call(cm.SessionReport(sid="one", format="md"))
        assert answer.result["report"]["rule"] == "same_error"
        assert answer.result["text"].startswith("# Run 1 of one: aborted")
        resumed = await on.call(cm.SessionResume(sid="one", reason="fixed"))
        assert (resumed.result["status"], resumed.result["run"]) == ("live", 2)
        assert on.router.rows[sid].status == "live"
        await on.send(sid)
        await on.until(lambda: on.router.rows[sid].status != "live")
        assert (await on.call(cm.SessionReport(sid=sid))).result["report"]["run"] == 2
