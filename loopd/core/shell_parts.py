"""A shell line taken apart into the simple commands that it would run. Pure.

Read for permission, so it errs on the side of not understanding: whatever could hide a command (a name
made by an expansion, `eval`, an unbalanced quote, `case`, a function) makes the line `unclear`, and what
is unclear is never allowed by a pattern. It is a fence, no wall: a program that runs programs (`make`,
`python -c`, `ssh`) is one command here.

    a && b | c     →  a · b · c              bash -lc 'a; b'  →  a · b
    x $(a) > f     →  x $(a) · a · > f       sudo -u u rm f   →  sudo -u u rm f, also known as `rm f`
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

import msgspec

from loopd.core.shell_words import Word, WordScanner

LINE_CHARS = 20_000
PARTS_MAX = 200
DEPTH_MAX = 8

_SHELLS = frozenset({"sh", "bash", "dash", "zsh", "ksh", "ash"})
_RUNNERS = frozenset(
    [
        "sudo",
        "doas",
        "env",
        "nohup",
        "time",
        "nice",
        "ionice",
        "timeout",
        "stdbuf",
        "setsid",
        "exec",
        "command",
        "builtin",
        "xargs",
        "parallel",
        "watch",
        "flock",
        "chroot",
        "unshare",
        "strace",
        "script",
        "coproc",
        "busybox",
    ]
)
"""Programs whose arguments are a command."""
_OPENING = frozenset({"then", "do", "else", "elif", "if", "while", "until", "!", "{", "time", "coproc"})
_CLOSING = frozenset({"fi", "done", "esac", "}"})
_UNREAD = frozenset({"case", "function", "select"})
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*(\[[^]]*\])?\+?=")
_GLOB = re.compile(r"(?!\[{1,2}\Z).*[*?{\[]", re.DOTALL)
"""A name that the shell would replace; `[` and `[[` are programs."""
_HARMLESS_TARGETS = frozenset({"/dev/null", "/dev/stdout", "/dev/stderr"})


class Part(msgspec.Struct, frozen=True):
    """One simple command, or one redirection to or from a file.

    Attributes:
        text: its words, unquoted, joined by single spaces: what a permission is compared with.
        names: all that a prohibition is compared with: `text`, without assignments, without the
            programs that run it, by the last name of its program.
        words: its words, unquoted.
    """

    text: str
    names: tuple[str, ...]
    words: tuple[str, ...]


class Reading(msgspec.Struct, frozen=True):
    """All parts in order; `unclear` says what was not understood, or is empty."""

    parts: tuple[Part, ...] = ()
    unclear: str = ""


@functools.lru_cache(maxsize=1_024)
def read_line(line: str) -> Reading:
    """Take a line apart."""
    return _read(line, 0)


def read_words(words: Sequence[str]) -> Reading:
    """The same for a command that is given as separate arguments, without a shell."""
    scanner = _Scanner("", 0)
    scanner.command([Word(word, quoted=True) for word in words])
    return Reading(tuple(scanner.parts[:PARTS_MAX]), scanner.unclear)


def _read(line: str, depth: int) -> Reading:
    if len(line) > LINE_CHARS:
        return Reading(unclear=f"the line has {len(line)} characters; {LINE_CHARS} are read")
    if depth > DEPTH_MAX:
        return Reading(unclear=f"commands are nested deeper than {DEPTH_MAX}")
    scanner = _Scanner(line, depth)
    scanner.script("")
    if len(scanner.parts) > PARTS_MAX:
        scanner.doubt(f"the line has more than {PARTS_MAX} commands")
    return Reading(tuple(scanner.parts[:PARTS_MAX]), scanner.unclear)


class _Scanner(WordScanner):
    def __init__(self, line: str, depth: int) -> None:
        super().__init__(line)
        self.depth = depth
        self.parts: list[Part] = []
        self._documents: list[tuple[str, bool, bool]] = []

    # -- commands -----------------------------------------------------------------------------

    def script(self, until: str) -> None:
        """Read commands up to `until` (`)` or the end)."""
        words: list[Word] = []
        while self.at < len(self.line):
            char = self.peek()
            if char == until:
                self.at += 1
                self.command(words)
                return
            if char in " \t\r":
                self.at += 1
            elif self.peek(2) == "\\\n":
                self.at += 2
            elif char == "\n":
                self.at += 1
                self.command(words)
                words = []
                self._skip_documents()
            elif char == "#":
                end = self.line.find("\n", self.at)
                self.at = len(self.line) if end < 0 else end
            elif self.peek(2) == "&>":
                self._redirection("&")
            elif char in ";&|":
                self.at += 1
                self.command(words)
                words = []
            elif char == "(":
                if words or self.peek(2) == "((":
                    self.doubt("a function, an array or arithmetic")
                self.at += 1
                self.nested(")")
            elif char == ")":
                self.doubt("a `)` without its `(`")
                self.at += 1
            elif char in "<>" and self.peek(2) not in {"<(", ">("}:
                self._redirection("")
            else:
                word = self.word()
                if word.text.isdigit() and not word.quoted and self.peek() and self.peek() in "<>":
                    self._redirection(word.text)
                else:
                    words.append(word)
        if until:
            self.doubt(f"no `{until}` to an opening one")
        if self._documents:
            self.doubt("a here-document without its end")
        self.command(words)

    def nested(self, until: str) -> None:
        """Read an inner script in place."""
        self.depth += 1
        if self.depth > DEPTH_MAX:
            self.doubt(f"commands are nested deeper than {DEPTH_MAX}")
            self.at = len(self.line)
        else:
            self.script(until)
        self.depth -= 1

    def inner(self, script: str) -> None:
        """Read a script that stands in a word."""
        found = _read(script, self.depth + 1)
        self.parts.extend(found.parts)
        if found.unclear:
            self.doubt(found.unclear)

    def command(self, words: list[Word]) -> None:
        """Take in one simple command."""
        while words and not words[0].quoted and words[0].text in _OPENING:
            words = words[1:]
        while words and not words[0].quoted and words[0].text in _CLOSING:
            words = words[1:]
        if not words:
            return
        first = words[0]
        if not first.quoted and first.text in _UNREAD:
            self.doubt(f"`{first.text}`")
            return
        if not first.quoted and first.text == "for":
            return  # names and values only; what runs stands behind `do`
        place = next(
            (i for i, w in enumerate(words) if w.quoted or not _ASSIGNMENT.match(w.text)), len(words)
        )
        rest = words[place:]
        if rest and (rest[0].dynamic or not rest[0].text or _GLOB.match(rest[0].text)):
            self.doubt("the name of a command is made by an expansion")
        if not place and self._inner(words):
            return
        self._add(words, rest)

    def _add(self, words: list[Word], rest: list[Word]) -> None:
        text = " ".join(word.text for word in words)
        names = [text]
        if rest:
            names.append(" ".join(word.text for word in rest))
            for behind in self._behind_runners(rest):
                names.append(" ".join(word.text for word in behind))
                if behind and _base(behind[0].text) in _SHELLS | {"eval"}:
                    self._inner(behind)
        for name in list(names):
            head, _, tail = name.partition(" ")
            if "/" in head:
                names.append(f"{_base(head)} {tail}".rstrip())
        if rest and _base(rest[0].text) == "git":
            names.append(_plain_git([word.text for word in rest]))
        unique = tuple(dict.fromkeys(names))
        self.parts.append(Part(text, unique, tuple(word.text for word in words)))

    def _behind_runners(self, rest: list[Word]) -> list[list[Word]]:
        """What could be the command that a runner runs: every tail, for its options may take values."""
        base = _base(rest[0].text)
        if base in _RUNNERS:
            return [rest[i:] for i in range(1, len(rest))][:PARTS_MAX]
        if base == "find":
            starts = [i + 1 for i, w in enumerate(rest) if w.text in {"-exec", "-execdir", "-ok", "-okdir"}]
            return [rest[i:] for i in starts if i < len(rest)]
        return []

    def _inner(self, words: list[Word]) -> bool:
        """Read the script of `sh -c '…'` or `eval`; whether the words were one."""
        base = _base(words[0].text)
        if base == "eval":
            script = words[1:]
        elif base in _SHELLS:
            flag = next(
                (i for i, w in enumerate(words[1:], 1) if re.fullmatch(r"-[A-Za-z]*c[A-Za-z]*", w.text)), None
            )
            if flag is None or any(not w.text.startswith("-") for w in words[1:flag]):
                return False
            script = words[flag + 1 : flag + 2]
        else:
            return False
        if any(word.dynamic for word in script):
            self.doubt(f"what `{base}` runs is made by an expansion")
            return True
        self.inner(" ".join(word.text for word in script))
        return True

    # -- redirections -------------------------------------------------------------------------

    def _redirection(self, descriptor: str) -> None:
        del descriptor  # of which one does not matter
        if self.peek() == "&":
            self.at += 1
        sign = self.peek()
        start = self.at
        while self.peek() and self.peek() in "<>|&-" and self.at - start < 3:
            if self.peek() == "-" and self.line[start : self.at] != "<<":
                break
            self.at += 1
        operator = self.line[start : self.at]
        while self.peek() and self.peek() in " \t":
            self.at += 1
        if self.peek() in {"", "\n", ";", "|", "&", "(", ")"}:
            self.doubt("a redirection to nowhere")
            return
        target = self.word()
        if operator in {"<<", "<<-"}:
            self._documents.append((target.text, target.quoted, operator == "<<-"))
        elif operator == "<<<" or (operator in {">&", "<&"} and re.fullmatch(r"\d+-?|-", target.text)):
            return
        elif target.text not in _HARMLESS_TARGETS:
            text = f"{'<' if sign == '<' else '>'} {target.text}"
            self.parts.append(Part(text, (text,), (text[0], target.text)))

    def _skip_documents(self) -> None:
        for delimiter, quoted, tabs in self._documents:
            body = []
            while self.at < len(self.line):
                end = self.line.find("\n", self.at)
                end = len(self.line) if end < 0 else end
                row = self.line[self.at : end]
                self.at = end + 1
                if (row.lstrip("\t") if tabs else row) == delimiter:
                    break
                body.append(row)
            else:
                self.doubt("a here-document without its end")
            if not quoted and re.search(r"\$\(|`", "\n".join(body)):
                self.doubt("a here-document that runs commands")
        self._documents.clear()


def _base(name: str) -> str:
    return name.rpartition("/")[2]


_GIT_WITH_VALUE = frozenset({"-C", "-c", "--git-dir", "--work-tree", "--namespace", "--exec-path"})


def _plain_git(words: list[str]) -> str:
    """`git -C d -c k=v push` as `git push`."""
    place = 1
    while place < len(words) and words[place].startswith("-"):
        place += 2 if words[place] in _GIT_WITH_VALUE else 1
    return " ".join(["git", *words[place:]])
