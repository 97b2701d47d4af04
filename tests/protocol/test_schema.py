"""The schema that ships, its digest, and which changes break old peers."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from loopd_protocol import schema
from loopd_protocol.commands import COMMAND_TYPES
from loopd_protocol.events import EVENT_TYPES

NOW = schema.build()


def changed(edit: Any) -> dict[str, Any]:
    document = copy.deepcopy(NOW)
    edit(document)
    return document


def kinds(edit: Any) -> set[bool]:
    """Whether the changes of an edit break: {True}, {False}, both, or nothing met."""
    return {change.breaking for change in schema.compare(NOW, changed(edit))}


def props(document: dict[str, Any], name: str) -> dict[str, Any]:
    return document["$defs"][name]["properties"]


def test_the_schema_names_every_command_and_event():
    assert set(NOW["commands"]) == set(COMMAND_TYPES)
    assert set(NOW["events"]) == set(EVENT_TYPES)
    for group in ("client", "server", "commands", "events"):
        for ref in NOW[group].values():
            assert ref["$ref"].removeprefix("#/$defs/") in NOW["$defs"]


def test_commands_forbid_other_fields_and_events_do_not():
    assert NOW["$defs"]["Suspend"]["additionalProperties"] is False
    assert "additionalProperties" not in NOW["$defs"]["GateChanged"]


def test_patterns_are_those_of_json_schema():
    assert "\\Z" not in json.dumps(NOW["$defs"])


def test_the_digest_forgets_explanations_and_keeps_everything_else():
    def explain(document: dict[str, Any]) -> None:
        document["$defs"]["Suspend"]["description"] = "other words"

    def loosen(document: dict[str, Any]) -> None:
        props(document, "Interrupt")["for_ms"] = {"type": "integer"}

    assert schema.digest() == schema.digest_of(NOW) == schema.digest_of(changed(explain))
    assert schema.digest_of(changed(loosen)) != schema.digest()
    assert schema.digest().startswith("sha256:")
    assert len(schema.digest()) == 71


def test_a_field_that_is_called_like_an_explanation_counts_in_the_digest():
    def drop(document: dict[str, Any]) -> None:
        props(document, "GoalSet").pop("title")

    document = changed(lambda d: props(d, "GoalSet").update(title={"type": "string"}))
    before = schema.digest_of(document)
    props(document, "GoalSet").pop("title")
    assert schema.digest_of(document) != before


def test_nothing_changed_is_no_change():
    assert schema.compare(NOW, copy.deepcopy(NOW)) == []


BREAKING = {
    "a command is gone": lambda d: d["commands"].pop("suspend"),
    "an event is gone": lambda d: d["events"].pop("gate.changed"),
    "a tag means another type": lambda d: d["commands"].update(suspend={"$ref": "#/$defs/Unsuspend"}),
    "an error code is gone": lambda d: d["errors"].pop("conflict"),
    "an error code means something else": lambda d: d["errors"]["conflict"].update(exit=2),
    "a type is gone": lambda d: d["$defs"].pop("Usage"),
    "a field is gone": lambda d: props(d, "Suspend").pop("reason"),
    "a field has another unit": lambda d: props(d, "Suspend").update(until_s=props(d, "Suspend").pop("until_ms")),
    "a field is newly required": lambda d: d["$defs"]["Suspend"]["required"].append("reason"),
    "an event's field may be absent": lambda d: d["$defs"]["GateChanged"]["required"].remove("gen"),
    "a new field is required": lambda d: (
        props(d, "Send").update(channel={"type": "string"}),
        d["$defs"]["Send"]["required"].append("channel"),
    ),
    "a bound is narrower": lambda d: props(d, "GoalSet")["text"].update(maxLength=10),
    "a type is another one": lambda d: props(d, "GateChanged")["gen"].update(type="string"),
    "a value is gone": lambda d: props(d, "Suspend")["mode"]["enum"].remove("kill"),
    "a lenient type became strict": lambda d: d["$defs"]["GateChanged"].update(additionalProperties=False),
    "a union lost a member": lambda d: props(d, "SessionCreate")["driver"]["anyOf"].pop(),
}  # fmt: skip

COMPATIBLE = {
    "a command is new": lambda d: d["commands"].update({"a.b": {"$ref": "#/$defs/Send"}}),
    "an event is new": lambda d: d["events"].update({"a.b": {"$ref": "#/$defs/GateChanged"}}),
    "an error code is new": lambda d: d["errors"].update(tired={"http": 500, "exit": 7}),
    "an optional field is new": lambda d: props(d, "Send").update(channel={"type": "string"}),
    "a command's field may be absent": lambda d: d["$defs"]["GoalSet"]["required"].remove("text"),
    "a value is new": lambda d: props(d, "Suspend")["mode"]["enum"].append("gently"),
    "a type is new": lambda d: d["$defs"].update(New={"type": "object"}),
}


@pytest.mark.parametrize("name", BREAKING)
def test_a_breaking_change_is_called_breaking(name: str):
    assert True in kinds(BREAKING[name]), name


@pytest.mark.parametrize("name", COMPATIBLE)
def test_a_compatible_change_is_met_and_called_compatible(name: str):
    assert kinds(COMPATIBLE[name]) == {False}, name


def test_the_module_prints_the_schema_and_judges_two_files(tmp_path: Path):
    def run(*args: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "loopd_protocol.schema", *args],
            capture_output=True,
            text=True,
            check=False,
        )

    printed = run()
    assert json.loads(printed.stdout) == NOW
    old, new = tmp_path / "old.json", tmp_path / "new.json"
    old.write_text(printed.stdout)
    new.write_text(json.dumps(changed(BREAKING["a field is gone"])))
    assert run(str(old), str(old)).returncode == 0
    judged = run(str(old), str(new))
    assert judged.returncode == 1
    assert "breaking: Suspend.reason: field removed" in judged.stdout
    assert run(str(old)).returncode == 2
