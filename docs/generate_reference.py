"""Write `docs/reference/*.md` from the code, so that the reference says what this version does.

python docs/generate_reference.py            write all pages
python docs/generate_reference.py --check    say what is stale, exit 1
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

import loopd.core.settings as session_settings
import loopd.drivers.acp.kinds as agent_kinds
from loopd.cli.arguments import common
from loopd.cli.daemon import whole_parser as daemon_parser
from loopd.cli.operator import EPILOG
from loopd.cli.verbs import VERBS
from loopd.config import Config, environment_name
from loopd.config.loading import sections
from loopd.telemetry.catalogue import METRICS
from loopd_protocol.commands import COMMAND_TYPES, MUTATING, SCOPES
from loopd_protocol.errors import ERRORS
from loopd_protocol.events import EVENT_TYPES, ToolCall, Usage
from loopd_protocol.frames import CLIENT_FRAMES, CORE_COMMANDS, SERVER_FRAMES
from loopd_protocol.sources import SOURCE_POLICIES

HERE = Path(__file__).resolve().parent
OUT = HERE / "reference"
NOTE = "<!-- Written by docs/generate_reference.py from the code; `make docs` writes it again. -->"
INT_MAX = 2**53 - 1
Verbs = argparse._SubParsersAction  # noqa: SLF001  (argparse has no public name for it)


# -- Markdown ---------------------------------------------------------------------------------


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> list[str]:
    """A table; `|` in cells is escaped."""
    lines = [list(head)]
    lines += [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in rows]
    lines.insert(1, ["---"] * len(lines[0]))
    return ["| " + " | ".join(line) + " |" for line in lines]


def page(title: str, intro: str, *blocks: Iterable[str]) -> str:
    """A whole page."""
    lines = [f"# {title}", "", NOTE, "", intro]
    for block in blocks:
        lines += ["", *block]
    return "\n".join(lines).rstrip() + "\n"


def prose(text: str) -> str:
    """A docstring's paragraph on one line."""
    return " ".join(text.split())


# -- structs ----------------------------------------------------------------------------------

_SECTION = re.compile(r"^(Attributes|Args|Raises|Returns|Yields):\s*$", re.MULTILINE)


def said(cls: type) -> tuple[str, dict[str, str]]:
    """What docstrings say of a class, and of each attribute, inherited ones included."""
    first, fields = "", {}
    for base in reversed(cls.__mro__[:-1]):
        if not issubclass(base, msgspec.Struct) or base is msgspec.Struct:
            continue
        parts = _SECTION.split(inspect.cleandoc(base.__doc__ or ""))
        first = prose(parts[0])
        for name, body in zip(parts[1::2], parts[2::2], strict=True):
            if name == "Attributes":
                fields.update(_attributes(body))
    return first, fields


def _attributes(body: str) -> Iterator[tuple[str, str]]:
    entry: list[str] = []
    for line in [*inspect.cleandoc(body).splitlines(), "end:"]:
        if line and not line.startswith(" ") and entry:
            names, _, meaning = " ".join(entry).partition(":")
            for name in names.split(","):
                yield name.strip(" `"), prose(meaning)
            entry = []
        if line.strip():
            entry.append(line.strip())


def shape(kind: Any) -> str:
    """A type for readers: `integer`, `text, at most 200`, `list of …`."""
    i = msgspec.inspect
    match kind:
        case i.UnionType():
            return " or ".join(dict.fromkeys(shape(part) for part in kind.types))
        case i.IntType():
            low, high = kind.ge, kind.le
            if (low, high) == (0, INT_MAX) or (low is None and high is None):
                return "integer"
            if low == -INT_MAX:
                return "integer, may be negative"
            if low is None:
                return f"integer to {high:,}"
            return f"integer from {low:,}" if high in {None, INT_MAX} else f"integer, {low:,} to {high:,}"
        case i.StrType():
            return "text" if kind.max_length is None else f"text, at most {kind.max_length:,}"
        case i.LiteralType():
            return " or ".join(f"`{value}`" for value in kind.values)
        case i.EnumType():
            return " or ".join(f"`{value.value}`" for value in kind.cls)
        case i.ListType() | i.VarTupleType() | i.SetType() | i.FrozenSetType():
            return f"list of {shape(kind.item_type)}"
        case i.TupleType():
            return "[" + ", ".join(shape(part) for part in kind.item_types) + "]"
        case i.DictType():
            return f"object of {shape(kind.value_type)}"
        case i.StructType():
            return f"`{kind.cls.__name__}`"
        case i.Metadata():
            return shape(kind.type)
    names = {i.NoneType: "null", i.BoolType: "true or false", i.AnyType: "any JSON", i.RawType: "any JSON"}
    return names.get(type(kind), type(kind).__name__.removesuffix("Type").lower())


def default(field: Any) -> str:
    """A field's default, or `required`."""
    if field.required:
        return "required"
    value = field.default_factory() if field.default is msgspec.NODEFAULT else field.default
    return f"`{msgspec.json.encode(value, enc_hook=str).decode()}`"


def fields_of(cls: type) -> list[str]:
    """The table of a struct's fields; empty when it has none."""
    _, meanings = said(cls)
    info = msgspec.inspect.type_info(cls)
    assert isinstance(info, msgspec.inspect.StructType)
    rows = [
        [f"`{field.encode_name}`", shape(field.type), default(field), meanings.get(field.encode_name, "")]
        for field in info.fields
    ]
    return table(("field", "type", "default", "meaning"), rows) if rows else []


def about(cls: type) -> str:
    """The first part of a docstring."""
    return said(cls)[0]


OUTPUT = (
    '`-o json` prints exactly one object, and an error as `{"error": {"code", "message", …}}` on standard error. '
    "`-o ndjson` prints one object per line and is what streams (`watch`, `tail -f`) need. Colours appear on a "
    "terminal only and respect `NO_COLOR`; characters that a terminal would act on are shown as escapes."
)
SETTINGS = (
    "Under `[sessions.set]` as defaults, and as `loopctl new --set KEY=VALUE` for one session. The defaults below "
    "are those of preset `published`."
)

# -- pages ------------------------------------------------------------------------------------


def actions_of(parser: argparse.ArgumentParser) -> list[argparse.Action]:
    """All arguments of a parser, in order; argparse has no public name for them."""
    return list(parser._actions)  # noqa: SLF001


def _argument_rows(parser: argparse.ArgumentParser, skip: frozenset[str]) -> Iterator[list[str]]:
    for action in actions_of(parser):
        if action.dest in skip or action.help == argparse.SUPPRESS:
            continue
        if isinstance(action, Verbs):
            continue
        value = action.metavar if isinstance(action.metavar, str) else ""
        if action.choices and not value:
            value = " or ".join(map(str, action.choices))
        if action.option_strings:
            name = ", ".join(f"`{option}`" for option in action.option_strings)
            name += f" *{value}*" if value and action.nargs != 0 else ""
        else:
            many = {"*": " …", "?": ""}.get(str(action.nargs), "")
            name = f"`{value}`{many}" + (" (optional)" if action.nargs in {"?", "*"} else "")
        yield [name, str(action.help or "")]


def _everywhere() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(add_help=False)
    common(parser)
    return parser


def cli() -> str:
    """`cli.md`."""
    shared = frozenset(action.dest for action in actions_of(_everywhere())) | {"help"}
    blocks: list[list[str]] = [
        ["## `loopctl`", "", "Options of every command, before or after it:"],
        table(("option", "meaning"), _argument_rows(_everywhere(), frozenset())),
        ["```text", EPILOG.strip(), "```"],
        [OUTPUT],
        table(
            ("command", "what it does"),
            [
                [f"[`{name}`](#loopctl-{name.replace(' ', '-')})", verb.summary]
                for name, verb in VERBS.items()
            ],
        ),
    ]
    for name, verb in VERBS.items():
        parser = argparse.ArgumentParser(add_help=False)
        verb.configure(parser)
        rows = list(_argument_rows(parser, shared - {"timeout"}))
        block = [f"### `loopctl {name}`", "", f"{verb.summary[:1].upper()}{verb.summary[1:]}."]
        if rows:
            block += ["", *table(("argument", "meaning"), rows)]
        block += ["", "```sh", *verb.examples, "```"]
        blocks.append(block)
    blocks.append(["## `loopd`"])
    blocks += _daemon_blocks(daemon_parser(), "loopd")
    intro = "`loopd` runs the daemon; `loopctl` operates it. Both print `--help` with examples."
    return page("Command line", intro, *blocks)


def _daemon_blocks(parser: argparse.ArgumentParser, path: str) -> Iterator[list[str]]:
    for action in actions_of(parser):
        if not isinstance(action, Verbs):
            continue
        helps = {choice.dest: str(choice.help or "") for choice in action._choices_actions}  # noqa: SLF001
        for name, leaf in action.choices.items():
            block = [f"### `{path} {name}`", "", f"{helps[name][:1].upper()}{helps[name][1:]}."]
            rows = list(_argument_rows(leaf, frozenset({"help"})))
            if rows:
                block += ["", *table(("argument", "meaning"), rows)]
            yield block
            yield from _daemon_blocks(leaf, f"{path} {name}")


def events() -> str:
    """`events.md`."""
    blocks: list[list[str]] = [
        table(
            ("kind", "what happened"),
            [[f"[`{k}`](#{k.replace('.', '')})", about(c)] for k, c in EVENT_TYPES.items()],
        )
    ]
    shown = {**EVENT_TYPES, "ToolCall": ToolCall, "Usage": Usage}
    blocks += [[f"## `{kind}`", "", about(cls), "", *fields_of(cls)] for kind, cls in shown.items()]
    intro = (
        "Everything that can have happened, as it is stored and as subscribers get it in the `b` of an `ev` frame. "
        "Fields are only ever added, with a default; skip what you do not know. Moments are `…_ms` since the Unix "
        "epoch, durations `…_ms`; there are no fractions."
    )
    return page("Events", intro, *blocks)


def commands() -> str:
    """`commands.md`."""
    rows = [
        [
            f"[`{name}`](#{name.replace('.', '')})",
            f"`{SCOPES[name]}`",
            "yes" if name in MUTATING else "",
            "yes" if name in CORE_COMMANDS else "",
        ]
        for name in COMMAND_TYPES
    ]
    blocks: list[list[str]] = [table(("command", "scope", "changes something", "core 0"), rows)]
    blocks += [[f"## `{name}`", "", about(cls), "", *fields_of(cls)] for name, cls in COMMAND_TYPES.items()]
    blocks.append(["## Frames"])
    for title, frames in (("Client", CLIENT_FRAMES), ("Server", SERVER_FRAMES)):
        blocks += [
            [f"### {title}: `{tag}`", "", about(frame), "", *fields_of(frame)]
            for tag, frame in frames.items()
        ]
    intro = (
        "What can be asked of the daemon, in the `c` of a `cmd` frame on the control socket. Unknown fields are "
        "refused: a mistyped `until_ms` must not become an endless suspension. A command that changes something may "
        "carry an idempotency `key` in its frame. Core 0 is frozen for ever, so any client can always stop any daemon."
    )
    return page("Commands", intro, *blocks)


def errors() -> str:
    """`errors.md`."""
    rows = [
        [f"`{code}`", row.meaning, str(row.exit), str(row.http), row.fault, "yes" if row.retryable else ""]
        for code, row in ERRORS.items()
    ]
    head = ("code", "meaning", "exit code", "HTTP", "whose fault", "may succeed later")
    intro = (
        "The closed registry of error codes. `state` means: the request is fine, the moment is not. "
        "`loopctl` itself adds `usage` (exit code 2) and `unavailable` (exit code 6: no daemon answers)."
    )
    return page("Errors", intro, table(head, rows))


def metrics() -> str:
    """`metrics.md`."""
    rows = []
    for name, metric in METRICS.items():
        kind = {"buckets": "histogram of the present"}.get(metric.kind, metric.kind)
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append([f"`{name}`", kind, labels, metric.help])
    bounds = [
        [f"`{name}`", ", ".join(f"{bound:g}" for bound in metric.bounds)]
        for name, metric in METRICS.items()
        if metric.bounds
    ]
    intro = (
        "What `/metrics` shows in Prometheus's text format 0.0.4. No metric has a label per session, unless "
        "`metrics.top_k` asks for the worst few. Ages are computed at the scrape. A histogram of the present counts "
        "sessions as they stand now, so its buckets may fall; use it without `rate`."
    )
    return page(
        "Metrics",
        intro,
        table(("metric", "type", "labels", "meaning"), rows),
        ["## Buckets", "", *table(("metric", "upper bounds"), bounds)],
    )


def configuration() -> str:
    """`configuration.md`."""
    blocks: list[list[str]] = []
    for name, section in (("", Config), *sections().items()):
        prefix = f"{name}." if name else ""
        info = msgspec.inspect.type_info(section)
        assert isinstance(info, msgspec.inspect.StructType)
        rows = []
        for field in info.fields:
            if isinstance(field.type, msgspec.inspect.StructType):
                continue
            key = prefix + field.encode_name
            rows.append(
                [
                    f"`{key}`",
                    shape(field.type),
                    default(field),
                    described(field.type),
                    f"`{environment_name(key)}`",
                ]
            )
        if not rows:  # it only holds other sections
            continue
        title = f"`[{name}]`" if name else "Top level"
        blocks.append(
            [
                f"## {title}",
                "",
                about(section),
                "",
                *table(("key", "type", "default", "meaning", "variable"), rows),
            ]
        )
    blocks.append(_session_settings())
    intro = (
        "`loopd serve` reads a TOML file (`--config`, `LOOPD_CONFIG`), variables and flags. A flag beats a variable, "
        "that beats the file, that beats the default. An unknown key is an error that names the nearest known one; "
        "`loopd config check FILE` names all mistakes at once, `loopd config show` prints what is in force."
    )
    return page("Configuration", intro, *blocks)


def described(kind: Any) -> str:
    """The description in a type's metadata."""
    if isinstance(kind, msgspec.inspect.Metadata):
        words = (kind.extra_json_schema or {}).get("description", "")
        return str(words) or described(kind.type)
    return ""


def _session_settings() -> list[str]:
    rows: list[list[str]] = []
    _settings_rows(session_settings.Settings, "", rows)
    head = ("key", "type", "default", "meaning")
    return ["## Settings of a session", "", SETTINGS, "", *table(head, rows)]


def _settings_rows(struct: type, prefix: str, rows: list[list[str]]) -> None:
    _, meanings = said(struct)
    info = msgspec.inspect.type_info(struct)
    assert isinstance(info, msgspec.inspect.StructType)
    for field in info.fields:
        key = prefix + field.encode_name
        if isinstance(field.type, msgspec.inspect.StructType):
            _settings_rows(field.type.cls, f"{key}.", rows)
        else:
            words = meanings.get(field.encode_name, "") or described(field.type)
            rows.append([f"`{key}`", shape(field.type), default(field), words])


def glossary() -> str:
    """`glossary.md`."""
    words = tomllib.loads((HERE / "glossary.toml").read_text(encoding="utf-8"))
    rows = [
        [f"**{word}**", meaning] for word, meaning in sorted(words.items(), key=lambda item: item[0].lower())
    ]
    sources = [
        [
            f"`{source.value}`",
            "yes" if policy.ephemeral_in_history else "no",
            "yes" if policy.starts_turn else "no",
            "yes" if policy.coalesces else "no",
            "yes" if policy.resets_progress else "no",
        ]
        for source, policy in SOURCE_POLICIES.items()
    ]
    head = (
        "source",
        "left out of later prompts",
        "may begin a turn",
        "only the newest waits",
        "counts as new information",
    )
    return page(
        "Glossary",
        "One word per thing, in the code, the documentation, the metrics and the SQL.",
        table(("word", "meaning"), rows),
        ["## Sources", "", *table(head, sources)],
    )


def agents() -> str:
    """Kinds of hosted agents: those that ship, and how a file describes one."""
    kind = agent_kinds.AgentKind
    parts = {"version": agent_kinds.Version, "model": agent_kinds.Model, "model.files": agent_kinds.File}
    parts |= {"capabilities": agent_kinds.Capabilities, "asking": agent_kinds.Asking}
    parts |= {"patience": agent_kinds.Patience}
    blocks = [
        [
            f"## `[{name}]`" if name != "model.files" else "## `[[model.files]]`",
            "",
            about(part),
            "",
            *fields_of(part),
        ]
        for name, part in parts.items()
    ]
    shipped = [agent_kinds.find(name) for name in agent_kinds.names()]
    rows = [
        [
            f"`{each.name}`",
            f"`{' '.join(each.command)}`",
            each.model.api,
            each.mode or "its own",
            f"`{each.install}`",
        ]
        for each in shipped
    ]
    return page(
        "Kinds of hosted agents",
        "What `loopctl new --driver acp --agent KIND` can name. A file `NAME.toml` in `~/.config/loopd/agents` (below "
        "`$XDG_CONFIG_HOME`, of the daemon's user) adds a kind or takes the place of one; `--agent PATH.toml` uses one "
        "that stands elsewhere. A key that is not known, or has a wrong value, is refused when a session is made, and "
        "named. `loopctl agents` shows which ones are installed.",
        ["## What ships", "", *table(("kind", "command", "model API", "unattended mode", "install"), rows)],
        ["## A kind", "", about(kind), "", *fields_of(kind)],
        *blocks,
        [
            "## Values",
            "",
            "Texts may contain "
            + ", ".join(f"`${{{name}}}`" for name in agent_kinds.VALUES)
            + ": the model settings of the session, `origin` and `path` of its `base_url`, the folders, and `permission`, "
            "which is `ask` in a session with an approval policy and else `allow`. `$$` is a dollar sign. A variable or "
            "argument whose value is not given is left out; so is a file.",
        ],
    )


PAGES = {
    "agents.md": agents,
    "cli.md": cli,
    "events.md": events,
    "commands.md": commands,
    "errors.md": errors,
    "metrics.md": metrics,
    "configuration.md": configuration,
    "glossary.md": glossary,
}


def main(arguments: list[str]) -> int:
    """Write the pages, or check them."""
    stale = []
    for name, write in PAGES.items():
        path, fresh = OUT / name, write()
        if arguments == ["--check"]:
            if not path.exists() or path.read_text(encoding="utf-8") != fresh:
                stale.append(name)
        else:
            OUT.mkdir(exist_ok=True)
            path.write_text(fresh, encoding="utf-8")
    for name in stale:
        sys.stderr.write(f"docs/reference/{name} is stale; run `make docs`\n")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
