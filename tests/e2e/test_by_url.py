"""`loopctl --url`: every answer is the one that the socket gives; and a thousand readers over a restart."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import subprocess
import time

import anyio
import httpx
import pytest

from tests.e2e.harness import BIN, Daemon, House, free_port

pytestmark = pytest.mark.process
SCOPES = ("read", "read.content", "send", "control", "create", "cron", "admin")


class Remote:
    """A daemon with HTTP and a token file for it."""

    def __init__(self, house: House, daemon: Daemon, *scopes: str) -> None:
        self.daemon = daemon
        self.file = house.folder / f"{'-'.join(scopes) or 'all'}.token"
        words = [word for scope in scopes or SCOPES for word in ("--scope", scope)]
        done = daemon.loopctl("token", "new", *words, "--to", str(self.file))
        assert done.returncode == 0, done.stderr

    def run(self, *words: str) -> subprocess.CompletedProcess[str]:
        """`loopctl` by URL, in an environment that names no socket."""
        env = {name: value for name, value in os.environ.items() if not name.startswith("LOOPD_")}
        return subprocess.run(
            [
                str(BIN / "loopctl"),
                *words,
                "--url",
                self.daemon.ready["http"],
                "--token-file",
                str(self.file),
            ],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            timeout=60,
            check=False,
            env=env,
        )


@pytest.fixture
def remote(house: House) -> Remote:
    return Remote(house, house.daemon(http=True).start())


def test_every_verb_says_by_url_what_it_says_at_the_socket(house: House, remote: Remote) -> None:
    daemon = remote.daemon
    script = house.script(["one", "two", "three"])
    made = remote.run(
        "new", "--driver", "scripted", "--script", str(script), "--name", "mapper", "-o", "json"
    )
    assert made.returncode == 0, made.stderr
    sid = json.loads(made.stdout)["sid"]
    assert remote.run("send", "mapper", "go").returncode == 0
    daemon.until(sid, "turn.completed")
    assert remote.run("suspend", "mapper", "--reason", "review").returncode == 0
    for words in (
        ("ps",), ("ps", "-o", "json"), ("why", "mapper"), ("gate", "mapper"), ("tail", "mapper", "-n", "5"), ("show", "mapper@1"),
        ("inbox", "mapper"), ("cron", "list"), ("report", "mapper"), ("token", "list", "-o", "json"), ("audit", "-o", "json"),
        ("why", "nobody"), ("show", "mapper@99"),
    ):  # fmt: skip
        here, there = daemon.loopctl(*words), remote.run(*words)
        assert there.returncode == here.returncode, (words, there.stderr)
        assert _timeless(there.stdout) == _timeless(here.stdout), words
        assert there.stderr == here.stderr


def _timeless(text: str) -> str:
    """Ages pass between two calls, and so does the time of a token's last use."""
    if text.startswith("{"):
        return json.dumps(_without(json.loads(text), "used_ms"), sort_keys=True)
    return re.sub(r"[0-9.]+ ?m?s\b", "N", text)


def _without(node: object, name: str) -> object:
    if isinstance(node, dict):
        return {key: _without(value, name) for key, value in node.items() if key != name}
    return [_without(item, name) for item in node] if isinstance(node, list) else node


def test_watching_by_url_shows_events_as_they_happen(house: House, remote: Remote) -> None:
    daemon = remote.daemon
    script = house.script(["one"])
    words = [str(BIN / "loopctl"), "watch", "-o", "ndjson", "-k", "envelope.*", "--url", daemon.ready["http"]]
    with subprocess.Popen(
        [*words, "--token-file", str(remote.file)], stdout=subprocess.PIPE, text=True
    ) as watching:
        assert watching.stdout is not None
        try:
            sid = daemon.scripted(script)
            deadline = time.monotonic() + 60
            # It stands when its subscription does; nobody can see that from here, so events come until it tells of one.
            while not select.select([watching.stdout], [], [], 0.5)[0] and time.monotonic() < deadline:
                daemon.call("send", sid, text="hello")
            event = json.loads(watching.stdout.readline())
            assert (event["k"], event["sid"]) == ("envelope.accepted", sid)
        finally:
            watching.terminate()


def test_what_a_token_may_not_do_has_the_exit_code_of_the_unauthorised(house: House, remote: Remote) -> None:
    reader = Remote(house, remote.daemon, "read")
    denied = reader.run("freeze")
    assert (denied.returncode, "forbidden" in denied.stderr) == (5, True)
    reader.file.write_text("lpd_0000000000_" + "x" * 43 + "\n")
    assert reader.run("ps").returncode == 5
    gone = reader.daemon.loopctl("ps", "--url", f"http://127.0.0.1:{free_port()}")
    assert (gone.returncode, "no daemon" in gone.stderr) == (6, True)
    assert reader.daemon.loopctl("ps", "--url", "ftp://x").returncode == 2


def test_a_token_file_narrows_who_one_is_at_the_socket_too(house: House, remote: Remote) -> None:
    reader = Remote(house, remote.daemon, "read")
    assert remote.daemon.loopctl("ps", "--token-file", str(reader.file)).returncode == 0
    assert remote.daemon.loopctl("freeze", "--token-file", str(reader.file)).returncode == 5
    assert os.stat(reader.file).st_mode & 0o777 == 0o600
    again = remote.daemon.loopctl("token", "new", "--scope", "read", "--to", str(reader.file))
    assert (again.returncode, "File exists" in again.stderr) == (2, True)


def test_a_login_outlives_a_restart(house: House) -> None:
    port = free_port()
    daemon = house.daemon(argv=["--http", f"127.0.0.1:{port}"]).start()
    token = Remote(house, daemon).file.read_text().strip()
    with httpx.Client(base_url=f"http://127.0.0.1:{port}", trust_env=False) as page:
        csrf = page.post("/v1/login", json={"token": token}).json()["csrf"]
        assert daemon.terminate() == 0
        daemon.start()
        assert page.get("/v1/me").json()["csrf"] == csrf
        assert page.post("/v1/freeze", headers={"x-csrf-token": csrf}).status_code == 200
    assert os.stat(daemon.data / "cookie.key").st_mode & 0o777 == 0o600


CLIENTS = 1_000
MESSAGES = 40
"""Before the restart and after it; each is two events, for the session is suspended."""


@pytest.mark.long
@pytest.mark.anyio
async def test_a_thousand_readers_have_every_event_once_and_in_order_over_a_restart(house: House) -> None:
    port = free_port()
    config = "[access]\nrate_per_s = 0\n"
    daemon = house.daemon(argv=["--http", f"127.0.0.1:{port}"], config=config).start()
    token = Remote(house, daemon).file.read_text().strip()
    sid = daemon.scripted(house.script(["done"]))
    daemon.call("suspend", sid, quarantine=True)
    log, start = daemon.call("daemon.status")["log"], daemon.head()
    readers = [Reader(port, token, f"{log}:{start}") for _ in range(CLIENTS)]
    frozen = Reader(port, token, f"{log}:{start}", frozen=True)

    def send(count: int) -> None:
        client = daemon.client()
        for n in range(count):
            client.call({"t": "send", "sid": sid, "text": f"message {n}"})
        client.close()

    with anyio.fail_after(240):
        async with anyio.create_task_group() as group:
            for reader in (*readers, frozen):
                group.start_soon(reader.run)
            await anyio.to_thread.run_sync(send, MESSAGES)
            await anyio.to_thread.run_sync(daemon.terminate)
            await anyio.to_thread.run_sync(daemon.start)
            await anyio.to_thread.run_sync(send, MESSAGES)
            head = daemon.head()
            for reader in readers:
                reader.until = head
            for reader in readers:
                await reader.done.wait()
            group.cancel_scope.cancel()
    wanted = list(range(start + 1, head + 1))
    assert [
        row[0]
        for row in daemon.sql("SELECT seq FROM journal WHERE seq > ? AND seq <= ? ORDER BY seq", start, head)
    ] == wanted
    assert sum(reader.seqs[: len(wanted)] != wanted for reader in readers) == 0
    assert sum(reader.connections for reader in readers) >= 2 * CLIENTS


class Reader:
    """A reader of the event stream that comes back with its last id, on plain sockets."""

    def __init__(self, port: int, token: str, cursor: str, *, frozen: bool = False) -> None:
        self.port, self.token, self.cursor, self.frozen = port, token, cursor, frozen
        self.seqs: list[int] = []
        self.until = 1 << 60
        self.connections = 0
        self.done = anyio.Event()

    async def run(self) -> None:
        """Read until everything is there."""
        while not self.done.is_set():
            try:
                await self._connected()
            except (OSError, anyio.EndOfStream, anyio.BrokenResourceError):
                await anyio.sleep(0.5)

    async def _connected(self) -> None:
        async with await anyio.connect_tcp("127.0.0.1", self.port) as stream:
            head = f"GET /v1/events HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {self.token}\r\nLast-Event-ID: {self.cursor}\r\n\r\n"
            await stream.send(head.encode())
            if self.frozen:
                await anyio.sleep(600)
            self.connections += 1
            data = b""
            while True:
                data += await stream.receive(65_536)
                *blocks, data = data.split(b"\n\n")
                for block in blocks:
                    place = block.rfind(b"id: ")
                    if place < 0:
                        continue
                    self.cursor = block[place + 4 :].partition(b"\n")[0].strip().decode()
                    if b'"t":"ev"' in block:
                        self.seqs.append(int(self.cursor.rpartition(":")[2]))
                if self.seqs and self.seqs[-1] >= self.until:
                    self.done.set()
                    return


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs openssl to make a certificate")
def test_https_is_spoken_with_a_certificate_and_checked_by_loopctl(house: House) -> None:
    key, certificate = house.folder / "key.pem", house.folder / "cert.pem"
    made = [
        "openssl",
        "req",
        "-x509",
        "-newkey",
        "rsa:2048",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=localhost",
    ]
    made += [
        "-addext",
        "subjectAltName=DNS:localhost,IP:127.0.0.1",
        "-keyout",
        str(key),
        "-out",
        str(certificate),
    ]
    subprocess.run(made, check=True, capture_output=True, timeout=60)
    config = f'[http]\ntls_certificate = "{certificate}"\ntls_key = "{key}"\n'
    remote = Remote(house, house.daemon(http=True, config=config).start())
    assert remote.daemon.ready["http"].startswith("https://127.0.0.1:")
    unknown = remote.run("ps")
    assert (unknown.returncode, "certificate verify failed" in unknown.stderr) == (6, True)
    env = {**os.environ, "SSL_CERT_FILE": str(certificate)}
    words = [
        str(BIN / "loopctl"),
        "ps",
        "--url",
        remote.daemon.ready["http"],
        "--token-file",
        str(remote.file),
    ]
    assert subprocess.run(words, env=env, capture_output=True, timeout=60, check=False).returncode == 0
