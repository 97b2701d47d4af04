"""Words on the wire of loopd, and bytes to messages without a socket."""
