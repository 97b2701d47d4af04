"""Pure decisions: no await, no clock, no I/O, no logging, no randomness."""
