"""The words of a shell line: quotes taken off, expansions found. Pure; see `loopd.core.shell_parts`."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod


class Word:
    """One word without its quotes.

    Attributes:
        quoted: some of it was quoted, so it is no reserved word.
        dynamic: some of it is made by an expansion: what it will be cannot be told.
    """

    __slots__ = ("dynamic", "quoted", "text")

    def __init__(self, text: str = "", *, quoted: bool = False, dynamic: bool = False) -> None:
        self.text = text
        self.quoted = quoted
        self.dynamic = dynamic


class WordScanner(ABC):
    """Reads words from a place in a line on; what is inside of expansions is handed to the heir."""

    def __init__(self, line: str) -> None:
        self.line = line
        self.at = 0
        self.unclear = ""

    def doubt(self, why: str) -> None:
        """Say what was not understood; the first word counts."""
        self.unclear = self.unclear or why

    def peek(self, count: int = 1) -> str:
        """The next characters, fewer at the end."""
        return self.line[self.at : self.at + count]

    @abstractmethod
    def nested(self, until: str) -> None:
        """Read an inner script in place, and what ends it."""

    @abstractmethod
    def inner(self, script: str) -> None:
        """Read a script that stands in a word."""

    def word(self) -> Word:
        """The word that begins here."""
        word = Word()
        start = self.at
        while self.at < len(self.line):
            char = self.peek()
            if char in " \t\r\n;|&)" or (char in "<>" and self.peek(2) not in {"<(", ">("}) or char == "(":
                if char == "(" and self.at > start:
                    self.doubt("a function, an array or a pattern with parentheses")
                break
            if char == "\\":
                if self.peek(2) != "\\\n":
                    word.text += self.line[self.at + 1 : self.at + 2]
                    word.quoted = True
                self.at += 2
            elif char == "'":
                self._single(word)
            elif char == '"':
                self._double(word)
            elif char in "<>":
                self.at += 2
                self._substitution(word, ")", self.line[self.at - 2 : self.at])
            elif char in "$`":
                self._expansion(word)
            else:
                word.text += char
                self.at += 1
        if self.at == start:  # never stand still
            self.at += 1
        return word

    def _single(self, word: Word) -> None:
        end = self.line.find("'", self.at + 1)
        if end < 0:
            self.doubt("a quote without its end")
            end = len(self.line)
        word.text += self.line[self.at + 1 : end]
        word.quoted = True
        self.at = end + 1

    def _double(self, word: Word) -> None:
        word.quoted = True
        self.at += 1
        while self.at < len(self.line):
            char = self.peek()
            if char == '"':
                self.at += 1
                return
            if char == "\\":
                following = self.line[self.at + 1 : self.at + 2]
                word.text += (
                    following if following in '$`"\\' else "" if following == "\n" else char + following
                )
                self.at += 2
            elif char in "$`":
                self._expansion(word)
            else:
                word.text += char
                self.at += 1
        self.doubt("a quote without its end")

    def _expansion(self, word: Word) -> None:
        if self.peek() == "`":
            end = self.at + 1
            while end < len(self.line) and self.line[end] != "`":
                end += 2 if self.line[end] == "\\" else 1
            if end >= len(self.line):
                self.doubt("a quote without its end")
            self.inner(re.sub(r"\\([`$\\])", r"\1", self.line[self.at + 1 : end]))
            word.text += self.line[self.at : end + 1]
            word.dynamic = True
            self.at = end + 1
            return
        following = self.peek(2)[1:]
        if following == "(":
            if self.peek(3) == "$((":
                self._arithmetic(word)
                return
            self.at += 2
            self._substitution(word, ")", "$(")
        elif following == "{":
            self._braced(word)
        elif following == "'":
            self.at += 1
            before = len(word.text)
            self._single(word)
            if "\\" in word.text[before:]:
                self.doubt("a quote with escapes")
        elif following == '"':
            self.at += 1
            self._double(word)
        else:
            name = re.compile(r"\$(\w+|[@*#?$!-])?").match(self.line, self.at)
            assert name is not None
            word.dynamic = word.dynamic or name.group(1) is not None
            word.text += name.group()
            self.at = name.end()

    def _substitution(self, word: Word, until: str, opening: str) -> None:
        start = self.at
        self.nested(until)
        word.text += opening + self.line[start : self.at]
        word.dynamic = True

    def _arithmetic(self, word: Word) -> None:
        end = self.line.find("))", self.at)
        if end < 0 or re.search(r"\$\(|`", self.line[self.at + 3 : end]):
            self.doubt("arithmetic that runs commands")
            end = len(self.line) if end < 0 else end
        word.text += self.line[self.at : end + 2]
        word.dynamic = True
        self.at = end + 2

    def _braced(self, word: Word) -> None:
        depth, end = 0, self.at + 1
        while end < len(self.line):
            depth += {"{": 1, "}": -1}.get(self.line[end], 0)
            end += 1
            if not depth:
                break
        inside = self.line[self.at : end]
        if depth or re.search(r"\$\(|`|@P", inside):
            self.doubt("an expansion that runs commands")
        word.text += inside
        word.dynamic = True
        self.at = end
