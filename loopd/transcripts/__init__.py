"""Foreign logs to steps that the rules can judge: the formats of agents, and loopd's own."""
