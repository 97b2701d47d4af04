"""From a file, the environment and flags to one `Config`; every mistake is named at once."""

from __future__ import annotations

import difflib
import ipaddress
import os
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec

from loopd.config.settings import Config, Section
from loopd.core.settings import settings_for
from loopd_protocol.errors import Refused

SOCKET_MAX_BYTES = 100
"""`sun_path` has 108 bytes on Linux and 104 on macOS, with its final zero."""

FILE_MAX_BYTES = 1_000_000


class ConfigRefused(Refused):
    """The configuration cannot be used; nothing was started.

    Attributes:
        problems: all mistakes that were found, one line each, in the order of the file.
    """

    def __init__(self, problems: list[Refused]) -> None:
        self.problems = tuple(problem.message for problem in problems)
        super().__init__(problems[0].code, "; ".join(self.problems), path=problems[0].path)


def load(
    path: str | Path | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    flags: Mapping[str, Any] | None = None,
) -> Config:
    """Read and check the configuration.

    Args:
        path: a TOML file, or None for none.
        environ: variables such as `LOOPD_HTTP_LISTEN`; default: the process's own.
        flags: dotted keys from the command line, for example `{"http.listen": …}`; None values
            are skipped.

    Raises:
        ConfigRefused: `not_found` for a missing file, `unknown_field` for a key that does not
            exist (with the nearest one that does), `invalid` for anything else.
    """
    table = read_file(path) if path is not None else {}
    problems = list(_unknown(table, str(path)))
    _strip_unknown(table)
    for key, value, origin in _overlays(os.environ if environ is None else environ, flags or {}, problems):
        _put(table, key, value, origin, problems)
    config = _convert(table, problems)
    if config is not None:
        problems.extend(_contradictions(config))
    if problems or config is None:
        raise ConfigRefused(problems)
    return config


def read_file(path: str | Path) -> dict[str, Any]:
    """Parse a TOML file.

    Raises:
        ConfigRefused: the file is missing, unreadable, too large or no TOML.
    """
    try:
        with open(path, "rb") as file:
            raw = file.read(FILE_MAX_BYTES + 1)
    except FileNotFoundError:
        raise _one("not_found", f"config file {str(path)!r} does not exist") from None
    except OSError as error:
        raise _one("invalid", f"config file {str(path)!r} cannot be read: {error.strerror}") from None
    if len(raw) > FILE_MAX_BYTES:
        raise _one("invalid", f"config file {str(path)!r} is over {FILE_MAX_BYTES} bytes")
    try:
        return tomllib.loads(raw.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise _one("invalid", f"config file {str(path)!r} is not TOML: {error}") from None


def known_keys() -> dict[str, Any]:
    """All dotted keys with their types, sections left out."""
    return dict(_fields(Config, ""))


def environment_name(key: str) -> str:
    """The variable that sets a key: `http.listen` → `LOOPD_HTTP_LISTEN`."""
    return "LOOPD_" + key.replace(".", "_").upper()


def _one(code: str, message: str, path: str | None = None) -> ConfigRefused:
    return ConfigRefused([Refused(code, message, path=path)])


def _fields(struct: type[Section], prefix: str) -> Iterator[tuple[str, Any]]:
    hints = get_type_hints(struct, include_extras=True)
    for field in msgspec.structs.fields(struct):
        kind = hints[field.name]
        if isinstance(kind, type) and issubclass(kind, Section):
            yield from _fields(kind, f"{prefix}{field.name}.")
        else:
            yield prefix + field.name, kind


def sections(struct: type[Section] = Config, prefix: str = "") -> dict[str, type[Section]]:
    """All sections by their dotted names, outer ones first."""
    found: dict[str, type[Section]] = {}
    for name, kind in get_type_hints(struct).items():
        if isinstance(kind, type) and issubclass(kind, Section):
            found[prefix + name] = kind
            found |= sections(kind, f"{prefix}{name}.")
    return found


def nearest(word: str, known: list[str]) -> str:
    """The known key that was most probably meant; never empty while any is known.

    A right last part in a wrong place counts for most: `port.listen` means `http.listen`.
    """
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.75)
    if close:
        return close[0]
    leaf = word.rpartition(".")[2]
    leaves = {key.rpartition(".")[2]: key for key in reversed(known)}
    close = difflib.get_close_matches(leaf, list(leaves), n=1, cutoff=0.7)
    if close:
        return leaves[close[0]]
    return difflib.get_close_matches(word, known, n=1, cutoff=0.0)[0]


def _unknown(table: Mapping[str, Any], origin: str, prefix: str = "") -> Iterator[Refused]:
    known = list(known_keys())
    tables = sections()
    for key, value in table.items():
        name = prefix + key
        if name in known:
            continue
        if name not in tables:
            keys = [f"{name}.{inner}" for inner in value] if isinstance(value, dict) else []
            for word in keys or [name]:
                yield _unknown_key(word, known, origin)
        elif not isinstance(value, dict):
            yield Refused(
                "invalid", f"{name}: expected a table such as [{name}]; got {value!r}", path=f"$.{name}"
            )
        else:
            yield from _unknown(value, origin, f"{name}.")


def _unknown_key(word: str, known: list[str], origin: str) -> Refused:
    return Refused(
        "unknown_field",
        f"unknown key {word!r} in {origin}; nearest known key is {nearest(word, known)!r}",
        path=f"$.{word}",
    )


def _strip_unknown(table: dict[str, Any], prefix: str = "") -> None:
    known = known_keys()
    tables = sections()
    for key in list(table):
        name = prefix + key
        if name in tables and isinstance(table[key], dict):
            _strip_unknown(table[key], f"{name}.")
        elif name not in known:
            del table[key]


def _overlays(
    environ: Mapping[str, str], flags: Mapping[str, Any], problems: list[Refused]
) -> Iterator[tuple[str, Any, str]]:
    names = {environment_name(key): key for key in known_keys()}
    prefixes = tuple(f"LOOPD_{section.upper().replace('.', '_')}_" for section in sections())
    for name in sorted(environ):
        if name in names:
            yield names[name], environ[name], name
        elif name.startswith(prefixes):
            problems.append(
                Refused(
                    "unknown_field",
                    f"unknown variable {name!r} in the environment; nearest known one is "
                    f"{nearest(name, list(names))!r}",
                )
            )
    for key, value in flags.items():
        if value is not None:
            yield key, value, f"flag for {key}"


def _put(table: dict[str, Any], key: str, value: Any, origin: str, problems: list[Refused]) -> None:
    kind = known_keys()[key]
    if isinstance(value, str):
        value = _from_text(value, kind)
    try:
        value = msgspec.convert(value, kind, strict=not isinstance(value, str))
    except msgspec.ValidationError as error:
        problems.append(
            Refused("invalid", f"{key}: {_plain(error, kind)}; got {value!r} from {origin}", path=f"$.{key}")
        )
        return
    _place(table, key, value)


def _place(table: dict[str, Any], key: str, value: Any) -> None:
    *path, leaf = key.split(".")
    for section in path:
        table = table.setdefault(section, {})
    table[leaf] = value


def _holder(table: Any, key: str) -> tuple[Any, str]:
    """The table that a dotted key is in, or what stands in its place; and the last part of the key."""
    *path, leaf = key.split(".")
    for section in path:
        table = table.get(section) if isinstance(table, dict) else None
    return table, leaf


def _from_text(text: str, kind: Any) -> Any:
    while get_origin(kind) is not None and hasattr(kind, "__metadata__"):
        kind = get_args(kind)[0]
    if get_origin(kind) is tuple:
        return [part.strip() for part in text.split(",") if part.strip()]
    if get_origin(kind) is dict:
        try:
            return tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            return text
    return text


def _convert(table: dict[str, Any], problems: list[Refused]) -> Config | None:
    """Convert key by key, so that one mistake does not hide the next."""
    known = known_keys()
    clean: dict[str, Any] = {}
    for key, kind in known.items():
        holder, leaf = _holder(table, key)
        if not isinstance(holder, dict) or leaf not in holder:
            continue
        value = holder[leaf]
        try:
            converted = msgspec.convert(value, kind, strict=True)
        except msgspec.ValidationError as error:
            problems.append(
                Refused("invalid", f"{key}: {_plain(error, kind)}; got {value!r}", path=f"$.{key}")
            )
            continue
        _place(clean, key, converted)
    try:
        return msgspec.convert(clean, Config)
    except msgspec.ValidationError as error:  # pragma: no cover - each key converted alone before
        problems.append(Refused("invalid", str(error)))
        return None


def _plain(error: msgspec.ValidationError, kind: Any) -> str:
    """The validator's words with a moved-over path, and the choices where it only says "invalid"."""
    head, _, place = str(error).partition(" - at `$")
    if "matching regex" in head:
        form = head.partition("regex ")[2]
        words = (("{1,5}", "HOST:PORT"), ("[0-9]{1,10}", "a numeric id as key"), ("https?", "http(s)://…"))
        head = "expected " + next((word for mark, word in words if mark in form), f"the form {form}")
    elif head.startswith("Invalid enum value"):
        head = f"expected one of {', '.join(map(repr, _choices(kind)))}"
    where = place.rstrip("`")
    return head[:1].lower() + head[1:] + (f" at {where}" if where else "")


def _choices(kind: Any) -> list[str]:
    if get_origin(kind) is Literal:
        return [str(choice) for choice in get_args(kind)]
    return [choice for part in get_args(kind) for choice in _choices(part)]


def _contradictions(config: Config) -> Iterator[Refused]:
    try:
        settings_for(config.sessions.preset, config.session_overrides)
    except Refused as refused:
        yield Refused(refused.code, f"sessions: {refused.message}", path="$.sessions")
    testing = config.testing
    if not testing.enabled and (testing.failpoints or testing.clock_offset_file is not None):
        yield Refused(
            "invalid",
            "testing: faults are asked for; expected `testing.enabled = true` beside them, and never where "
            "work is done",
            path="$.testing",
        )
    path = config.socket_path
    if path is not None and len(os.fsencode(path)) > SOCKET_MAX_BYTES:
        yield Refused(
            "invalid",
            f"socket: path of {len(os.fsencode(path))} bytes {path!r}; expected at most "
            f"{SOCKET_MAX_BYTES} (give a shorter one with --socket)",
            path="$.socket",
        )
    if (config.http.tls_certificate is None) != (config.http.tls_key is None):
        yield Refused(
            "invalid",
            "http: tls_certificate and tls_key belong together; one of them is missing",
            path="$.http",
        )
    if config.http.listen is not None and not config.http.listen.startswith("unix:"):
        host, _, port = config.http.listen.rpartition(":")
        if int(port) > 65_535:
            yield Refused(
                "invalid", f"http.listen: port {port}; expected at most 65535", path="$.http.listen"
            )
        if not is_loopback(host.strip("[]")) and not config.http.allow_remote:
            yield Refused(
                "invalid",
                f"http.listen: {host!r} is not a loopback address; expected 127.0.0.1, [::1] or "
                "localhost, or http.allow_remote = true",
                path="$.http.listen",
            )


def is_loopback(host: str) -> bool:
    """Whether a host names this machine only. Names other than `localhost` do not count."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
