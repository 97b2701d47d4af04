"""Explain afterwards: replay, the exact prompt, the past, forks, comparisons, anchors, archives, imports."""

from __future__ import annotations

import hashlib
import json
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from loopd.testing.endpoint import Call, ask, say
from tests.e2e.harness import FILLER, NO_RULES, Daemon, House, endpoint, working

pytestmark = pytest.mark.process
BUSY = {"continuation.min_gap_ms": 0}


@pytest.fixture(scope="module")
def house() -> Iterator[House]:
    house = House()
    yield house
    house.close()


@pytest.fixture(scope="module")
def daemon(house: House) -> Daemon:
    return house.daemon("forensic").start()


@pytest.fixture(scope="module")
def mapper(house: House, daemon: Daemon) -> str:
    """It chants until its gate closes; a person lifts the hold, and it chants again."""
    sid = daemon.scripted(house.script([FILLER], "chant.jsonl"), goal="map it", name="mapper", set=BUSY)
    daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection")
    daemon.call("cron.put", sid, job="nightly", expr="0 3 * * *", text="check")
    daemon.call("send", sid, text="please go on")
    daemon.until(sid, "gate.changed", lambda b: b["cause"] == "detection", count=2)
    daemon.call("suspend", sid, reason="night")
    return sid


@pytest.fixture(scope="module")
def worker(house: House, daemon: Daemon) -> str:
    """It works, idles once, and is done; its goal holds a password."""
    turns: list[Any] = working(4)
    turns[1] = [
        turns[1],
        {"text": "wait", "calls": [{"name": "request_idle", "args": {"max_idle_duration_secs": 60}}]},
    ]
    sid = daemon.scripted(
        house.script(turns, "work.jsonl"), goal="log in with password=hunter22x", name="worker", once=True,
        set={**BUSY, **NO_RULES},
    )  # fmt: skip
    daemon.until(sid, "gate.changed", lambda b: b["cause"] == "request_idle")
    daemon.call("gate.open", sid)
    daemon.until(sid, "goal.changed", lambda b: b["status"] == "complete")
    return sid


def same(daemon: Daemon, sid: str) -> dict[str, Any]:
    outcome = daemon.ctl("replay", sid)
    assert outcome["status"] == "same", outcome
    assert outcome["events"] == len(daemon.events(sid))
    return dict(outcome)


def test_real_sessions_replay_byte_for_byte(daemon: Daemon, mapper: str, worker: str) -> None:
    assert same(daemon, mapper)["verdicts"] == 2
    same(daemon, worker)


def test_a_replay_with_another_threshold_names_the_first_difference(daemon: Daemon, mapper: str) -> None:
    outcome = daemon.ctl("replay", mapper, "--set", "rules.repeated_text.threshold=4", code=1)
    found = outcome["difference"]
    fourth = daemon.events(mapper, "turn.completed")[3]
    assert (outcome["status"], found["rule"], found["seq"]) == ("different", "repeated_text", fourth["seq"])
    text = daemon.loopctl("replay", mapper, "--set", "rules.repeated_text.threshold=4").stdout
    assert "DIFFERENT at seq" in text
    wrong = daemon.loopctl("replay", mapper, "--set", "rules.repeated_tex.threshold=4")
    assert wrong.returncode == 2
    assert "repeated_text" in wrong.stderr


def test_the_prompt_of_a_turn_is_rebuilt_as_the_endpoint_received_it(daemon: Daemon) -> None:
    with endpoint([say("one"), ask(Call("report_phase", {"name": "second"})), say("two"), say("three")]) as (
        model,
        _,
    ):
        sid = daemon.chat(model.base_url, name="chatty", system="be brief")
        for count, text in enumerate(("first", "second", "third"), 1):
            daemon.call("send", sid, text=text)
            daemon.until(sid, "turn.completed", count=count)
        sent = [hashlib.sha256(request.body).hexdigest() for request in model.requests]
        shown = []
        for n in (1, 2, 3):
            steps = len(daemon.call("turn.get", sid, n=n)["steps"])
            for step in range(1, steps + 1):
                prompt = daemon.ctl("show", f"{sid}@{n}", "--prompt", "--step", str(step))["prompt"]
                assert prompt["missing"] == []
                assert prompt["request_sha256"] == prompt["recorded_sha256"]
                shown.append(prompt["request_sha256"])
        assert shown == sent
        same(daemon, sid)

        answer = daemon.ctl("diff", f"{sid}@1", f"{sid}@2", code=1)
        assert [op["op"] for op in answer["ops"]] == ["same", "added", "added"]
        assert [op["message"]["text"] for op in answer["ops"][1:]] == ["one", "second"]
        assert daemon.ctl("diff", f"{sid}@2", "2")["same"] is True
        text = daemon.loopctl("diff", f"{sid}@1", f"{sid}@2").stdout
        assert "+ second" in text


def test_a_fork_goes_on_from_a_turn_with_a_journal_of_its_own(daemon: Daemon) -> None:
    with endpoint([say("alpha"), say("beta"), say("gamma")]) as (model, _):
        sid = daemon.chat(model.base_url, name="tree", system="be brief", labels={"team": "x"})
        for count, text in enumerate(("first", "second"), 1):
            daemon.call("send", sid, text=text)
            daemon.until(sid, "turn.completed", count=count)
        before = daemon.events(sid)
        fork = daemon.ctl("fork", f"{sid}@1", "--name", "branch")
        assert (fork["parent"]["sid"], fork["parent"]["n"]) == (sid, 1)
        assert "Files are not turned back" in fork["note"]
        assert daemon.events(sid) == before, "the parent knows nothing of it"
        branch = fork["sid"]
        why = daemon.ctl("why", branch)
        assert [hold["kind"] for hold in why["holds"]] == ["UserSuspend"]
        daemon.call("unsuspend", branch)
        daemon.call("send", branch, text="another way")
        done = daemon.until(branch, "turn.completed")
        assert done["b"]["n"] == 2, "it goes on counting"
        told = [m["content"] for m in json.loads(model.requests[-1].body)["messages"]]
        assert told == ["be brief", "first", "alpha", "another way"]
        prompt = daemon.call("turn.get", branch, n=2, prompt=True)["prompt"]
        assert prompt["request_sha256"] == hashlib.sha256(model.requests[-1].body).hexdigest()
        assert daemon.call("session.get", branch)["labels"] == {"team": "x"}
        same(daemon, branch)
        daemon.verified(branch)

        opened = daemon.ctl("fork", f"{branch}@2", "--open", "--name", "twig")
        assert daemon.ctl("why", opened["sid"])["gate"] == "open"
        for words, code in (((f"{sid}@9",), "not_found"), (("nobody@1",), "not_found")):
            assert code in daemon.loopctl("fork", *words).stderr


def test_a_fork_outlives_a_restart(house: House) -> None:
    daemon = house.daemon("again").start()
    with endpoint([say("alpha"), say("beta")]) as (model, _):
        sid = daemon.chat(model.base_url, name="tree")
        daemon.call("send", sid, text="first")
        daemon.until(sid, "turn.completed")
        branch = daemon.ctl("fork", sid, "--name", "branch")["sid"]
        daemon.kill()
        daemon.start()
        daemon.call("unsuspend", branch)
        daemon.call("send", branch, text="second")
        daemon.until(branch, "turn.completed")
        told = [m["content"] for m in json.loads(model.requests[-1].body)["messages"]]
        assert told == ["first", "alpha", "second"]
    daemon.verified()
    for each in (sid, branch):
        same(daemon, each)
    daemon.terminate()


def test_a_session_is_shown_as_it_was_at_any_event(daemon: Daemon, mapper: str) -> None:
    events = daemon.events(mapper)
    turns = holds = 0
    for event in events:
        then = daemon.call("session.get", mapper, at=event["seq"])
        turns += event["k"] == "turn.started"
        if event["k"] == "gate.changed":
            holds = len(event["b"].get("holds") or ())
        assert (then["at"]["seq"], then["rev"], then["turns"]) == (event["seq"], event["ss"], turns)
        assert len(then["holds"]) == holds
    last = daemon.call("session.get", mapper, at_ms=events[-1]["ts"] + 1)
    now = daemon.call("session.get", mapper)
    assert {k: v for k, v in last.items() if k != "at"} == now
    early = daemon.refusal("session.get", mapper, at=events[0]["seq"] - 1)
    assert early.code == "not_found"
    assert "did not exist then" in early.message
    assert "closed" in daemon.loopctl("show", mapper, "--at", str(events[-1]["seq"])).stdout


def test_verify_tells_what_it_checked(daemon: Daemon, mapper: str, worker: str) -> None:
    proof = daemon.verified()
    assert set(proof["invariants"]) >= {f"I{n}" for n in range(1, 10)}
    assert all(each["found"] == 0 for each in proof["invariants"].values())
    for name in ("I1", "I2", "I3", "I4", "I7", "I8", "I9"):
        assert proof["invariants"][name]["checked"] > 0, name
    assert proof["range"] == {"first": 1, "last": proof["head"]}
    assert proof["version"]
    one = daemon.verified(mapper)
    assert one["session"]["ss"] == daemon.events(mapper)[-1]["ss"]
    assert "CHECKED" in daemon.loopctl("verify", "--invariants").stdout
    offline = daemon.ctl("verify", "--data", str(daemon.data))
    assert offline["ok"]
    assert offline["head"] >= proof["head"]


def test_anchors_are_signed_told_and_still_there_after_a_restart(house: House, tmp_path: Path) -> None:
    daemon = house.daemon("anchored").start()
    daemon.scripted(house.script(working(3), "a.jsonl"), goal="go", once=True, set={**BUSY, **NO_RULES})
    daemon.terminate()
    log = tmp_path / "stderr.log"
    log.write_text(daemon.stderr())
    daemon.start()
    listed = daemon.ctl("anchor", "list")
    assert listed["anchors"]
    file = tmp_path / "anchors.ndjson"
    daemon.loopctl("anchor", "export", "-f", str(file))
    for where in (file, log):
        proof = daemon.ctl("verify", "--anchors", str(where))
        assert proof["anchors_given"]["checked"] == len(listed["anchors"])
    other = house.daemon("stranger").start()
    refused = other.ctl("verify", "--anchors", str(file), code=1)
    assert {f["check"] for f in refused["findings"]} == {"anchor"}
    forged = json.loads(file.read_text().splitlines()[0]) | {"h": "00" * 32}
    file.write_text(json.dumps(forged))
    assert "signature" in daemon.ctl("verify", "--anchors", str(file), code=1)["findings"][0]["what"]
    daemon.terminate()
    proof = json.loads(
        daemon.loopctl("verify", "--data", str(daemon.data), "--anchors", str(log), "-o", "json").stdout
    )
    assert proof["ok"]
    other.terminate()


@pytest.mark.parametrize("profile", ["none", "secrets", "content"])
def test_an_export_verifies_alone_and_is_read_elsewhere(
    daemon: Daemon, worker: str, house: House, tmp_path: Path, profile: str
) -> None:
    file = tmp_path / "w.zip"
    told = daemon.ctl("export", worker, "--redact", profile, "-f", str(file))
    assert told["sha256"] == hashlib.sha256(file.read_bytes()).hexdigest()
    everything = b"".join(zipfile.ZipFile(file).read(n) for n in zipfile.ZipFile(file).namelist())
    assert (b"hunter22x" in everything) is (profile == "none")
    assert (b"wrote 1" in everything) is (profile != "content")
    key = daemon.ctl("anchor", "list")["keys"][0]["public"]
    proof = daemon.ctl("verify", str(file), "--trust", key)
    assert (proof["signature"]["status"], proof["redaction"]["profile"]) == ("trusted", profile)
    assert proof["checked"]["events"] == len(daemon.events(worker))
    daemon.ctl("verify", str(file), "--trust", "ab" * 32, code=1)

    other = house.daemon(f"reader-{profile}").start()
    added = other.ctl("import", str(file))
    assert added["dup"] is False
    (session,) = added["sessions"]
    sid = session["sid"]
    assert other.ctl("import", str(file))["dup"] is True
    assert other.ctl("export", "--all", "-f", str(tmp_path / "log.zip"))["manifest"]["counts"]["events"] > 0
    shown = other.ctl("show", f"{sid}@1")
    assert len(shown["steps"]) == 1
    assert other.call("session.get", sid)["turns"] == daemon.call("session.get", worker)["turns"]
    assert [row["status"] for row in other.ctl("ps")["sessions"]] == ["imported"]
    if profile == "none":
        assert other.ctl("replay", sid)["status"] == "same"
        assert other.call("history.page", sid, limit=1_000)["events"] == [
            {**event, "sid": sid} for event in daemon.call("history.page", worker, limit=1_000)["events"]
        ]
    else:
        assert other.ctl("replay", sid)["status"] == "ended"
    for verb in (
        ("send", sid, "x"),
        ("suspend", sid),
        ("end", sid),
        ("cron", "put", sid, "j", "* * * * *", "t"),
    ):
        refused = other.loopctl(*verb)
        assert (refused.returncode, "imported" in refused.stderr) == (4, True), verb
    assert other.ctl("verify", sid)["ok"]
    other.kill()
    other.start()
    assert other.call("session.get", sid)["name"] == "worker"
    if profile == "content":
        assert "driver" in other.loopctl("fork", f"{sid}@2").stderr
    else:
        assert other.ctl("fork", f"{sid}@2", "--name", "continued")["parent"]["sid"] == sid
    kinds = [event["k"] for event in other.events()]
    assert kinds.count("session.imported") == 1
    other.ctl("import", "--drop", sid)
    assert other.loopctl("show", sid).returncode == 3
    assert other.verified()["ok"]
    other.terminate()


def test_a_changed_archive_is_refused_by_verify_and_by_import(
    daemon: Daemon, mapper: str, tmp_path: Path
) -> None:
    file = tmp_path / "m.zip"
    daemon.ctl("export", mapper, "-f", str(file))
    changed = tmp_path / "changed.zip"
    with zipfile.ZipFile(file) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            data = old.read(name)
            new.writestr(name, data.replace(b"No action", b"My action") if name == "journal.ndjson" else data)
    proof = daemon.ctl("verify", str(changed), code=1)
    assert {"file", "session chain"} <= {f["check"] for f in proof["findings"]}
    refused = daemon.loopctl("import", str(changed))
    assert refused.returncode == 6
    assert "does not verify" in refused.stderr
    changed.write_bytes(b"PK no zip at all")
    assert daemon.loopctl("verify", str(changed)).returncode == 2


def test_the_whole_log_is_exported_with_both_chains_and_by_time(
    daemon: Daemon, worker: str, tmp_path: Path
) -> None:
    file = tmp_path / "log.zip"
    told = daemon.ctl("export", "--all", "-f", str(file))
    assert told["manifest"]["range"]["first"] == 1
    proof = daemon.ctl("verify", str(file))
    assert proof["invariants"]["I8"]["checked"] > proof["checked"]["events"], "the log and each session"
    assert "export.made" in [event["k"] for event in daemon.events()]
    part = tmp_path / "part.zip"
    began = daemon.events(worker)[0]["ts"]
    offline = daemon.ctl(
        "export", worker, "--data", str(daemon.data), "--since", f"@{began // 1_000}", "-f", str(part)
    )
    assert offline["manifest"]["counts"]["events"] == len(daemon.events(worker))
    assert daemon.ctl("verify", str(part))["signature"]["status"] == "none"


def test_a_page_and_spans_are_made_of_a_session(daemon: Daemon, mapper: str, tmp_path: Path) -> None:
    page, spans = tmp_path / "m.html", tmp_path / "m.json"
    daemon.ctl("export", mapper, "--format", "html", "-f", str(page))
    daemon.ctl("export", mapper, "--format", "otlp-json", "-f", str(spans))
    assert "<script" not in page.read_text()
    made = json.loads(spans.read_text())["resourceSpans"][0]["scopeSpans"][0]["spans"]
    turns = [span for span in made if span["name"].startswith("invoke_agent")]
    assert len(turns) == len(daemon.events(mapper, "turn.started"))
    assert any(span["name"] == "hold Degeneration" for span in made)


def test_a_replay_explains_what_differs_and_what_to_ask_next(
    daemon: Daemon, mapper: str, tmp_path: Path
) -> None:
    """The record is changed in a copy, where nobody checks the chain; replay alone finds that it cannot have been so."""
    whole = tmp_path / "m.zip"
    daemon.ctl("export", mapper, "-f", str(whole))
    assert daemon.loopctl("replay", str(whole)).stdout.startswith("the same, byte for byte")

    def told(change: Any) -> str:
        with zipfile.ZipFile(whole) as old:
            files = {name: old.read(name) for name in old.namelist()}
        rows = [json.loads(line) for line in files["journal.ndjson"].splitlines()]
        change(rows)
        files["journal.ndjson"] = b"".join(
            json.dumps(row, separators=(",", ":")).encode() + b"\n" for row in rows
        )
        changed = tmp_path / "changed.zip"
        with zipfile.ZipFile(changed, "w") as new:
            for name, data in files.items():
                new.writestr(name, data)
        done = daemon.loopctl("replay", str(changed))
        assert done.returncode == 1, done.stderr
        return done.stdout

    def first(rows: list[dict[str, Any]], kind: str) -> dict[str, Any]:
        return next(row for row in rows if row["kind"] == kind)

    def another_answer(rows: list[dict[str, Any]]) -> None:
        step = [row for row in rows if row["kind"] == "turn.step"][2]
        step["body"] = json.loads(json.dumps(step["body"]).replace(FILLER, "Something else."))

    text = told(another_answer)
    assert "the record has 'degeneration.detected'; nothing is decided now" in text
    assert "led to it  the end of a turn (TurnEnded)" in text
    assert "recorded   degeneration.detected  repeated_text → close: 5 of 5 turns" in text
    assert "replayed   nothing" in text
    assert "this event, or one before it, is not what it was; `loopctl verify" in text.replace(
        "So this", "this"
    )
    text = told(lambda rows: rows.remove(first(rows, "degeneration.detected")))
    assert "the record has 'gate.changed'; decided now is 'degeneration.detected'" in text
    assert "recorded   gate.changed  closed by detection" in text
    text = told(lambda rows: first(rows, "gate.changed")["body"]["added"].update(until_ms=1_795_400_000_000))
    assert "'gate.changed' differs in added.until_ms" in text
    assert "- 1795400000000" in text
    text = told(lambda rows: first(rows, "degeneration.detected")["body"].update(config_revision="ffff"))
    assert "only the revision of the rules and their settings has another name" in text

    def elsewhere(rows: list[dict[str, Any]]) -> None:
        another_answer(rows)
        for row in rows:
            row["boot"] = 99  # of a boot that is not listed: nobody knows who wrote it

    assert "This version may decide otherwise than the one that wrote it" in told(elsewhere)
    asked = daemon.loopctl("replay", mapper, "--set", "rules.repeated_text.threshold=4").stdout
    assert "replayed   degeneration.detected  repeated_text → close: 4 of 4 turns" in asked
    assert "the settings of --set would have made otherwise" in asked
    assert daemon.loopctl("replay", str(tmp_path / "none.zip")).returncode == 3


def test_verify_says_what_is_not_proven_and_what_is_not_trusted(
    daemon: Daemon, mapper: str, tmp_path: Path
) -> None:
    began = daemon.events(mapper)[0]["seq"]
    text = daemon.loopctl("verify", mapper, "--suspended-since", str(began)).stdout
    assert text.startswith("NOT PROVEN (the journal is whole, the suspension is not what was asked for)")
    text = daemon.loopctl("verify").stdout
    assert "events, " in text
    assert "{" not in text, "nobody has to read JSON"
    file = tmp_path / "m.zip"
    daemon.ctl("export", mapper, "-f", str(file))
    assert "which only the archive itself names; --trust KEY" in daemon.loopctl("verify", str(file)).stdout
    other = daemon.loopctl("verify", str(file), "--trust", "ab" * 32)
    assert (other.returncode, other.stdout.startswith("NOT TRUSTED")) == (1, True)
    key = daemon.ctl("anchor", "list")["keys"][0]["public"]
    assert "which you trust" in daemon.loopctl("verify", str(file), "--trust", key).stdout
    for words, said in (
        (("verify", mapper, "--trust", key), "--trust is about a signature"),
        (("verify", str(file), "--trust", "xyz"), "64 hex digits"),
        (("export", mapper, "-f", str(tmp_path / "no" / "x.zip")), "cannot write"),
        (("anchor", "export", "-f", str(tmp_path / "no" / "x")), "cannot write"),
    ):
        done = daemon.loopctl(*words)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_a_suspension_is_proven_from_an_archive_and_from_an_imported_session_too(
    house: House, daemon: Daemon, mapper: str, worker: str, tmp_path: Path
) -> None:
    since = daemon.events(mapper, "gate.changed")[-1]["seq"]
    plain, tied, both = tmp_path / "m.zip", tmp_path / "t.zip", tmp_path / "all.zip"
    daemon.ctl("export", mapper, "-f", str(plain))
    daemon.ctl("export", mapper, "--links", "-f", str(tied))
    daemon.ctl("export", "--all", "-f", str(both))
    proof = daemon.ctl("verify", str(plain), "--suspended-since", str(since))["proof"]
    assert (proof["suspend_seq"], proof["turns_after"], proof["lifted_seq"]) == (since, 0, None)
    last = daemon.events(mapper)[-1]["seq"]
    assert proof["checked_through"] == last, "an archive knows nothing of what came behind its end"
    linked = daemon.ctl("verify", str(tied), "--suspended-since", str(since))
    assert linked["proof"]["checked_through"] == linked["links"]["last"] > last
    text = daemon.loopctl("verify", str(plain), "--suspended-since", str(since)).stdout
    assert f"suspended since seq {since}: no turn has started, through seq {last}" in text
    early = daemon.events(mapper)[1]["seq"]
    for file in (plain, tied):
        wrong = daemon.ctl("verify", str(file), "--suspended-since", str(early), code=1)
        assert {finding["check"] for finding in wrong["findings"]} == {"contract 3"}
    later = daemon.ctl("verify", str(plain), "--suspended-since", str(last + 1_000), code=1)
    assert "it ends with" in later["findings"][0]["what"]
    refused = daemon.loopctl("verify", str(both), "--suspended-since", str(since))
    assert (refused.returncode, "a suspension is proven of one" in refused.stderr) == (2, True)

    other = house.daemon("suspended-reader").start()
    sid = other.ctl("import", str(plain))["sessions"][0]["sid"]
    assert other.ctl("verify", sid, "--suspended-since", str(since))["proof"]["suspend_seq"] == since
    wrong = other.ctl("verify", sid, "--suspended-since", str(early), code=1)
    assert wrong["findings"], "what cannot be proven is not called whole"
    assert str(other.data) not in json.dumps(wrong)
    other.terminate()


def test_a_fork_that_would_know_nothing_is_refused(house: House) -> None:
    """Retention has deleted what was said: a fork would begin with holes and be told that it knows it all."""
    daemon = house.daemon("forgetful").start()
    with endpoint([say("alpha"), say("beta")]) as (model, _):
        sid = daemon.chat(model.base_url, name="tree")
        for count, text in enumerate(("first", "second"), 1):
            daemon.call("send", sid, text=text)
            daemon.until(sid, "turn.completed", count=count)
    daemon.call("session.end", sid)
    daemon.terminate()
    ahead = house.folder / "ahead"
    ahead.write_text(str(3 * 86_400_000))
    daemon.config = (
        f'[retention]\ncontent_days = 1\n[testing]\nenabled = true\nclock_offset_file = "{ahead}"\n'
    )
    daemon.start()
    daemon.call("retention.run")
    next(daemon.follow(kinds=["retention.swept"]))
    refused = daemon.loopctl("fork", f"{sid}@2")
    assert refused.returncode == 3, refused.stdout
    assert "a fork would not know it" in refused.stderr
    assert "by the policy 'content 1 d'" in refused.stderr
    assert daemon.ctl("replay", sid)["status"] == "ended"
    daemon.verified()
    daemon.terminate()


def test_an_archive_that_would_fill_the_disk_is_refused_before_a_byte_of_it_came(daemon: Daemon) -> None:
    refused = daemon.refusal("import.open", bytes=1 << 40, sha256="ab" * 32)
    assert refused.code == "storage_full"
    assert "bytes are free" in refused.message
    assert not list((daemon.data / "spool").iterdir())


@pytest.mark.parametrize(
    "point",
    [
        "commit.begin/session.imported:kill",
        "commit.written/session.imported:full",
        "commit.begin/session.imported:kill@2",
    ],
)
def test_an_import_whose_event_was_not_written_is_told_when_it_is_asked_again(
    daemon: Daemon, worker: str, house: House, tmp_path: Path, point: str
) -> None:
    file = tmp_path / "w.zip"
    daemon.ctl("export", worker, "-f", str(file))
    other = house.daemon(
        f"told-{point.rpartition(':')[2]}",
        config=f'[testing]\nenabled = true\nfailpoints = "{point}"\n',
    ).start()
    before = int(point.endswith("@2"))
    for _ in range(before):
        other.ctl("import", "--drop", other.ctl("import", str(file))["sessions"][0]["sid"])
    assert other.loopctl("import", str(file)).returncode != 0
    assert other.process is not None
    if "kill" in point:
        other.wait()
    else:
        other.kill()
    other.config = ""
    other.start()
    assert [row["status"] for row in other.ctl("ps")["sessions"]] == ["imported"]
    assert len(other.events(None, "session.imported")) == before
    again = [other.ctl("import", str(file)) for _ in range(2)]
    assert [told["dup"] for told in again] == [True, True]
    events = other.events(None, "session.imported")
    sid = events[-1]["b"]["sid"]
    assert (len(events), {told["sessions"][0]["sid"] for told in again}) == (before + 1, {sid})
    other.ctl("import", "--drop", sid)
    assert other.ctl("import", str(file))["dup"] is False
    assert other.ctl("import", str(file))["dup"] is True
    assert len(other.events(None, "session.imported")) == before + 2
    assert other.verified()["ok"]
    other.terminate()
