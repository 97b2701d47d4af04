"""The two commands: `loopd` runs the daemon, `loopctl` operates it.

Everything that `loopctl status` touches imports little: no msgspec, no asyncio, no typing.
"""
