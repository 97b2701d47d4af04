"""The three APIs against a real llama.cpp server with a real, small model; directly and through the proxy.

Skips unless `make demo-real` (or `python -m loopd.testing.realmodel prepare`) has installed it here.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import anyio
import pytest

from loopd.core.conversation import Message
from loopd.drivers.chat import ChatDriver
from loopd.drivers.fittings import Fittings
from loopd.drivers.proxy.door import APIS
from loopd.drivers.proxy.server import ModelProxy
from loopd.testing import realmodel
from loopd.testing.driver_suite import RecordingHost, turn
from loopd_protocol.commands import ChatSpec
from tests.drivers.test_proxy import Ledger

INSTALLED = realmodel.FOLDER / "installed"
pytestmark = [
    pytest.mark.anyio,
    pytest.mark.real,
    pytest.mark.process,
    pytest.mark.skipif(
        not INSTALLED.exists(),
        reason=f"{INSTALLED} is missing: run `make demo-real` once to install the model",
    ),
]
ANSWER_S = 100.0


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(scope="module")
async def model(anyio_backend: str) -> AsyncIterator[realmodel.RealModel]:
    async with realmodel.serving(Path(realmodel.prepare())) as served:
        yield served


@pytest.mark.parametrize("proxied", [False, True], ids=["direct", "proxied"])
@pytest.mark.parametrize("api", APIS)
async def test_a_real_server_answers_on_every_api(
    model: realmodel.RealModel, api: str, proxied: bool
) -> None:
    system = Message(ss=0, role="system", source="session", text="You are brief.")
    earlier = Message(ss=1, role="assistant", source="model", text="Hello.")
    ledger, host = Ledger(), RecordingHost()
    with anyio.fail_after(ANSWER_S):
        async with anyio.create_task_group() as tasks:
            spec = ChatSpec(
                base_url=model.url,
                model=model.model,
                api=api,
                tools=False,
                max_tokens=16,
                temperature_milli=200,
                proxy=proxied,
            )
            fittings = Fittings(proxy=ModelProxy(tasks, ledger), tasks=tasks)
            driver = ChatDriver("ses_real", spec, None, fittings=fittings)
            end = await driver.take_turn(turn("Say hello to me.", before=(system, earlier)), host)
            await driver.aclose()
            tasks.cancel_scope.cancel()
    assert end.outcome == "completed", end
    (step,) = host.steps
    assert step.text.strip()
    assert step.finish in {"stop", "length"}
    assert step.usage is not None
    assert step.usage.measured
    assert step.usage.input_tokens > 5
    assert 0 < step.usage.output_tokens <= 17
    assert "".join(host.deltas) == step.text
    assert [(c.api, c.outcome, c.usage) for c in ledger.calls] == (
        [(api, "ok", step.usage)] if proxied else []
    )


@pytest.mark.parametrize("api", APIS)
async def test_a_real_server_names_an_overflow(model: realmodel.RealModel, api: str) -> None:
    host = RecordingHost()
    with anyio.fail_after(ANSWER_S):
        spec = ChatSpec(base_url=model.url, model=model.model, api=api, tools=False, max_tokens=16)
        end = await ChatDriver("ses_real", spec, None).take_turn(turn("word " * 12_000), host)
    assert (end.outcome, end.cause) == ("model_error", "context_overflow"), end
