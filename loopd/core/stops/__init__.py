"""Stop rules: what bounds a run, whoever the agent is. Pure.

`signatures` and `unresolved` judge failures, `phases` edges between kinds of work, `attempts` what was
tried again in vain, `limits` holds the settings and thresholds by profile, `counting` the state that
follows each step, `precedence` which of several reasons gives a session its status.
"""
