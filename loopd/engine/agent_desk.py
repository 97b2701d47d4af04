"""What hosted agents ask for themselves from outside of their driver, on `agent.sock`."""

from __future__ import annotations

from loopd.core.access import Answer, Caller
from loopd.core.conversation import AgentRequest
from loopd.engine.router import Router
from loopd_protocol.access_commands import AgentAsk
from loopd_protocol.errors import Refused

NO_TURN = (
    "No turn of this session runs now, so nothing was changed. Ask again within a turn; the next one begins "
    "when a message, a wake-up or the goal calls for it."
)


async def ask(router: Router, caller: Caller, command: AgentAsk) -> Answer:
    """Carry out a request of the session's own agent within the running turn.

    Without one the agent gets a text that says so: it is a model that has to understand it.

    Raises:
        Refused: `forbidden` for a caller that speaks for no session.
    """
    if caller.session is None:
        raise Refused(
            "forbidden", f"agent.ask needs the token of a hosted agent; {caller.principal} has none"
        )
    loop = router.loaded(caller.session)
    turn = None if loop is None else loop.turn
    if loop is None or turn is None or turn.cut or loop.session.turn is None or loop.session.turn.n != turn.n:
        return Answer(seq=router.store.head, result={"ok": False, "text": NO_TURN, "ends_turn": False})
    reply = await turn.ask(AgentRequest(name=command.name, args=command.args))
    result = {"ok": reply.ok, "text": reply.text, "ends_turn": reply.ends_turn}
    return Answer(seq=router.store.head, rev=loop.durable.ss, result=result)
