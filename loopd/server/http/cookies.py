"""Logins of the page: cookies that prove themselves, and the file that remembers which were ended.

`cookie.key` holds the key, 32 bytes, and a line for each login that was ended before its hours were over. Both are
one file on purpose: whoever loses the memory loses the key with it, so that no login comes back to life.
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hmac
import os
import secrets
import threading
from hashlib import sha256
from pathlib import Path

from loopd_protocol.errors import Refused

COOKIE_MS = 12 * 3_600_000
COOKIES = 4_096
"""Ended logins that are remembered; one more and the key changes, which ends all of them."""

KEY_BYTES = 32
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


class Cookies:
    """Logins: `kid.ends.nonce.mac`, where the mac is an HMAC under a key of this data folder.

    None is stored, so a page that is left open outlives a restart. The secret that changes by cookie must show
    (CSRF) follows from the cookie by the same key. Only a logout is remembered, until the cookie would have ended.

    Args:
        path: the file of the key, made when there is none; None keeps everything in memory.
    """

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._lock = threading.Lock()
        read = None if path is None else _read(path)
        self._key, self._out = read or (secrets.token_bytes(KEY_BYTES), {})
        if read is None:
            self._write(self._key, self._out)

    def issue(self, kid: str, ends_ms: int) -> str:
        """A new cookie for the holder of a token."""
        named = f"{kid}.{ends_ms}.{secrets.token_urlsafe(16)}"
        return f"{named}.{self._mac('cookie', named)}"

    def kid(self, cookie: str, now_ms: int) -> str:
        """The token that a cookie stands for.

        Raises:
            Refused: `unauthenticated`.
        """
        named, _, mac = cookie.rpartition(".")
        kid, _, rest = named.partition(".")
        ends = rest.partition(".")[0]
        good = hmac.compare_digest(self._mac("cookie", named).encode(), mac.encode("utf-8", "replace"))
        if not good or not ends.isdigit() or int(ends) <= now_ms or _digest(cookie) in self._out:
            raise Refused("unauthenticated", "not logged in, or not any more")
        return kid

    def csrf(self, cookie: str) -> str:
        """What a change by this cookie must show."""
        return self._mac("csrf", cookie)

    def forget(self, cookie: str, now_ms: int) -> None:
        """It is worth nothing any more, and that is durable on return. Waits for the disk: call it in a thread.

        Raises:
            Refused: `storage_full` or `storage_readonly`; the login stands as before, so that it can be tried again.
        """
        with self._lock:
            try:
                self.kid(cookie, now_ms)
            except Refused:
                return  # it is worth nothing already, and what nobody issued takes no place
            key = self._key
            out = {name: ends for name, ends in self._out.items() if ends > now_ms}
            out[_digest(cookie)] = int(cookie.split(".")[-3])
            if len(out) > COOKIES:
                key, out = secrets.token_bytes(KEY_BYTES), {}
            try:
                self._write(key, out)
            except OSError as error:
                code = "storage_full" if error.errno in _FULL else "storage_readonly"
                raise Refused(
                    code, f"the logout could not be kept, you are still logged in: {error}"
                ) from error
            self._key, self._out = key, out

    def _mac(self, what: str, text: str) -> str:
        mac = hmac.digest(self._key, f"{what}:{text}".encode("utf-8", "replace"), "sha256")
        return base64.urlsafe_b64encode(mac).decode().rstrip("=")

    def _write(self, key: bytes, out: dict[str, int]) -> None:
        """The whole file at once: it is small, a logout is rare, and no half a line can ever be found in it."""
        if self._path is None:
            return
        temporary = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            with os.fdopen(descriptor, "wb") as file:
                file.write(key + "".join(f"{ends} {name}\n" for name, ends in out.items()).encode())
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, self._path)
        except OSError:
            with contextlib.suppress(OSError):
                temporary.unlink(missing_ok=True)
            raise
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _read(path: Path) -> tuple[bytes, dict[str, int]] | None:
    """Key and ended logins; None where there is no file, or one that is not whole: then every login ends."""
    try:
        data = path.read_bytes()
        lines = data[KEY_BYTES:].decode("ascii").splitlines()
        out = {name: int(ends) for ends, name in (line.split(" ") for line in lines)}
    except (FileNotFoundError, ValueError):
        return None
    return (data[:KEY_BYTES], out) if len(data) >= KEY_BYTES else None


def _digest(cookie: str) -> str:
    return sha256(cookie.encode("utf-8", "replace")).hexdigest()
