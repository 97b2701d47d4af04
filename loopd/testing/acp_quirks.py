"""The bad habits of real agents, for `loopd.testing.acp_agent`: what each was seen to do, as a script.

A quirk is a list of turns, a turn a list of actions; a habit is a way to behave outside of turns.
"""

from __future__ import annotations

from typing import Any

Json = dict[str, Any]


def tool(name: str = "shell", **more: Any) -> Json:
    """A tool action; see `Agent._tool`."""
    return {"tool": {"name": name, **more}}


QUIRKS: dict[str, list[list[Json]]] = {
    "plain": [[{"say": "hello"}]],
    "late_call": [  # updates before the call is announced, and the announcement without a status
        [
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "in_progress"}},
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "Bash"}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "rawInput": {"command": "ls"}}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed",
                        "rawOutput": {"stdout": "a.txt", "exit_code": 0}}},
            {"say": "listed"},
        ]
    ],
    "ignored_cancel": [[{"say": "on it "}, {"hang": True}]],
    "stderr_flood": [[{"stderr": 300_000}, {"say": "fine"}, {"stderr": 1_500_000}]],
    "long_line": [[{"long": 1_000_000}, {"say": "fine"}]],
    "endless_line": [[{"say": "so far "}, {"raw_bytes": 10_000_000}, {"hang": True}]],
    "death_in_turn": [[{"say": "working "}, {"die": 3}], [{"say": "back again"}]],
    "killed_in_turn": [[{"say": "working "}, {"kill": True}], [{"say": "back again"}]],
    "late_updates": [
        [{"say": "done", "id": "m"}, {"after": [{"say": " and more"}, tool(status="completed", input={"command": "x"})]}],
        [{"say": "second"}],
    ],
    "late_usage": [[{"say": "done"}, {"after": [{"sleep": 0.02}, {"usage_update": {"inputTokens": 70, "outputTokens": 7}}]}]],
    "error_prose": [[{"say": "Ran into this error: Server error (503): overloaded. Please retry."}]],
    "silence": [[{"say": "let me think "}, {"hang": True}]],
    "garbage": [[{"raw": "Welcome to the agent!"}, {"raw": "{not json"}, {"raw": "[1,2]"}, {"say": "fine"}]],
    "double_terminal": [
        [
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "c1", "title": "shell", "kind": "execute",
                        "status": "pending", "rawInput": {"command": "false"}}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "failed",
                        "rawOutput": {"exit_code": 1, "output": "no"}}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "completed"}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "c1", "status": "in_progress"}},
            {"say": "it failed"},
        ]
    ],
    "no_input": [
        [
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "t9", "title": "true", "kind": "execute",
                        "status": "in_progress"}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "t9", "status": "completed",
                        "_meta": {"terminal_output": {"data": ""}, "terminal_exit": {"exit_code": 0}}}},
            {"say": "ran it"},
        ]
    ],
    "asks_permission": [[tool(ask=True, input={"command": "rm x"}, output="removed"), {"say": "done"}]],
    "setsid_tool": [[tool(run="sleep 300", setsid=True, input={"command": "sleep 300"}), {"say": "done"}]],
    "cumulative_usage": [
        [{"say": "one"}, {"usage": {"inputTokens": 100, "outputTokens": 10, "totalTokens": 110}}],
        [{"say": "two"}, {"usage": {"inputTokens": 250, "outputTokens": 25, "totalTokens": 275}}],
        [{"say": "three"}, {"usage": {"inputTokens": 400, "outputTokens": 40, "totalTokens": 440}}],
    ],
    "empty": [[]],
    "empty_billed": [[{"usage": {"inputTokens": 100, "outputTokens": 3, "totalTokens": 103}}]],
    "unknown_kinds": [
        [
            {"update": {"sessionUpdate": "something_new", "x": 1}},
            {"update": {"noKind": True}},
            {"notify": {"method": "session/gossip", "params": {}}},
            {"request": {"method": "fs/read_text_file", "params": {"path": "/etc/passwd"}}},
            {"request": {"method": "terminal/create", "params": {"command": "id"}}},
            {"say": "fine"},
        ]
    ],
    "bad_ids": [
        [
            {"raw": '{"jsonrpc":"2.0","id":99999,"result":{}}'},
            {"raw": '{"jsonrpc":"2.0","id":null,"error":{"code":1,"message":"x"}}'},
            {"raw": '{"jsonrpc":"2.0","id":[1],"method":"session/request_permission","params":{}}'},
            {"raw": '{"jsonrpc":"2.0"}'},
            {"say": "fine"},
        ]
    ],
    "rpc_error": [[{"error": {"code": -32603, "message": "Internal error", "data": "429 Too Many Requests, retry after 7 s"}}]],
    "cancels_itself": [[{"say": "hm"}, {"stop": "cancelled"}]],
    "open_tool": [[tool(status="in_progress", input={"command": "make"}), {"say": "left it running"}]],
    "chant": [[{"say": "No action. " * 400, "pieces": 200}, {"hang": True}]],
    "streamed_arguments": [
        [
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "0:c", "title": "Bash", "kind": "execute",
                        "status": "pending"}},
            *({"update": {"sessionUpdate": "tool_call_update", "toolCallId": "0:c", "status": "in_progress",
                          "content": [{"type": "content", "content": {"type": "text", "text": text}}]}}
              for text in ('{"comm', '{"command": "rm -r', '{"command": "rm -r x"}')),
            {"permission": {"toolCallId": "0:c", "title": "Bash", "content": [
                {"type": "content", "content": {"type": "text", "text": "May I run rm -r x?"}}]}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "0:c", "status": "in_progress",
                        "title": "Running: rm -r x", "rawInput": {"command": "rm -r x"}}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "0:c", "status": "completed",
                        "content": [{"type": "content", "content": {"type": "text", "text": "removed"}}]}},
            {"say": "done"},
        ]
    ],
    "two_calls": [
        [
            {"think": "first this"},
            tool(id="a", input={"command": "ls"}, output="x"),
            {"say": "then that"},
            tool("read_file", kind="read", id="b", input={"path": "x"}, output="content"),
            {"say": "all done"},
        ]
    ],
    "parallel_calls": [
        [
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "a", "title": "shell", "kind": "execute",
                        "status": "in_progress", "rawInput": {"command": "ls a"}}},
            {"update": {"sessionUpdate": "tool_call", "toolCallId": "b", "title": "shell", "kind": "execute",
                        "status": "in_progress", "rawInput": {"command": "ls b"}}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "b", "status": "completed", "rawOutput": "B"}},
            {"update": {"sessionUpdate": "tool_call_update", "toolCallId": "a", "status": "completed", "rawOutput": "A"}},
            {"say": "both"},
        ]
    ],
    "noop_loop": [[*(tool(id=f"n{i}", input={"command": "true"}, output="") for i in range(200)), {"say": "busy"}]],
    "filler": [[{"say": "16/100. Not complete. No action."}]],
}  # fmt: skip
"""Turns by the name of the quirk."""

HABITS = (
    "exits_at_once",
    "never_initializes",
    "garbage_only",
    "endless_line_first",
    "refuses_session",
    "auth_required",
    "wrong_version",
    "no_session_id",
    "cannot_resume",
    "resume_fails",
    "loads_only",
    "ids_as_text",
    "closes_stdout",
    "wants_mode",
)
"""Ways to behave outside of turns; they can be put together with a script or quirk."""
STUBBORN = {"ignored_cancel"}
