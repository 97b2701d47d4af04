"""The loopback model proxy: stands between an agent and its model endpoint, and keeps what both said.

    agent ──key of loopd──▶ proxy on 127.0.0.1 ──the real key──▶ endpoint
                              │  asks the witness before a call: may it leave?
                              └─ tells the witness after it: exact bytes, usage, status, duration

The agent never has the real key. While the session may not call its model (no turn runs, it asked to
idle, a budget is used up) the proxy answers itself, with a valid answer that says nothing and stops.
"""
