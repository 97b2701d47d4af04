"""The composition root: the only place that knows all rooms.

`house` opens the rooms in order and closes them in order, `process` is the process around it,
`standing` what it says of itself.
"""

from loopd.daemon.house import Daemon
from loopd.daemon.process import run

__all__ = ["Daemon", "run"]
