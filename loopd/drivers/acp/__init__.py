"""Hosts agents that speak the Agent Client Protocol (JSON-RPC, one message a line) on stdin and stdout.

    kinds ── what is known of an agent        launch ── command, environment, files
    connection ── messages over lines         process ── the agent's processes, and their end
    agent ── one running agent with its session       calls, steps ── what it does, as records
    driver ── turns

Everything that is special about one agent stands in its TOML file under `agents/`, nothing in code.
"""
