"""Signatures as in the Standard Webhooks specification, version 1 (standardwebhooks.com).

webhook-id: LOG:SEQ                the same for every try: a sink that has seen it may skip it
webhook-timestamp: 1795314989      of this try, seconds
webhook-signature: v1,BASE64       HMAC-SHA256 of "id.timestamp.body"
"""

from __future__ import annotations

import base64
import binascii
import hmac
import secrets

PREFIX = "whsec_"


def new_secret() -> str:
    """A random secret in the form of the specification."""
    return PREFIX + base64.b64encode(secrets.token_bytes(32)).decode()


def key_of(secret: str) -> bytes:
    """The bytes to sign with: decoded behind `whsec_`, else the text itself."""
    if secret.startswith(PREFIX):
        try:
            return base64.b64decode(secret[len(PREFIX) :], validate=True)
        except (binascii.Error, ValueError):
            pass
    return secret.encode()


def headers(secret: str, message_id: str, at_s: int, body: bytes) -> dict[str, str]:
    """The three headers of one try."""
    signed = f"{message_id}.{at_s}.".encode() + body
    mac = base64.b64encode(hmac.digest(key_of(secret), signed, "sha256")).decode()
    return {"webhook-id": message_id, "webhook-timestamp": str(at_s), "webhook-signature": f"v1,{mac}"}
