"""Model calls of the scripted agent: what real agents do behind their protocol, made by the standard library."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import Any


def call_model(spec: dict[str, Any]) -> dict[str, Any]:
    """POST `spec["body"]` to `spec["path"]` of the model that the kind's environment names; status and answer."""
    url = f"{os.environ['MODEL_BASE'].rstrip('/')}{spec['path']}"
    key = os.environ.get("MODEL_KEY", "")
    headers = {
        "content-type": "application/json", "authorization": f"Bearer {key}", "x-api-key": key,
        "anthropic-version": "2023-06-01",
    }  # fmt: skip
    asked = urllib.request.Request(url, json.dumps(spec["body"]).encode(), headers)  # noqa: S310  (loopback)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(asked, timeout=20) as answer:
            return {"status": answer.status, "answer": answer.read().decode()}
    except urllib.error.HTTPError as error:
        return {"status": error.code, "answer": error.read().decode()}
