"""Read a shell script or line for the ``vllm serve`` in it, with the variables that it sets. Pure.

Not a shell: it knows quotes, comments, continued lines, assignments, exports, arrays, redirections and what separates
commands, and puts in what the text itself says of a variable. What only a run could tell stays as it is written.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from kveik.errors import LineUnreadableError

_ASSIGNED = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:([A-Za-z_][A-Za-z0-9_]*)|\{([A-Za-z_][A-Za-z0-9_]*)(?:\[@\])?(?::?-([^}]*))?\})")
_SEPARATORS = frozenset("\n;|&()<>")
_MODULES = ("vllm.entrypoints.openai.api_server", "vllm.entrypoints.launchers.api_server", "kveik.connector.serve")


@dataclass(frozen=True, slots=True)
class ServeLine:
    """One ``vllm serve``: its arguments, and the variables that it gets from the same text."""

    arguments: tuple[str, ...]
    environment: dict[str, str]


@dataclass(slots=True)
class _Known:
    values: dict[str, str] = field(default_factory=dict)
    arrays: dict[str, list[str]] = field(default_factory=dict)


def serve_lines(text: str) -> list[ServeLine]:
    """All of them, in order. Raises :class:`LineUnreadableError` if there is none, or a quote has no end."""
    known = _Known()
    found = []
    for command in _commands(text, known):
        assigned = _assignments(command)
        words = command[len(assigned) :]
        if words[:1] == ["export"]:
            known.values.update(_assignments(words[1:]))
        elif words[:1] == ["unset"]:
            for name in words[1:]:
                known.values.pop(name, None)
        elif not words:
            known.values.update(assigned)
        if (arguments := _served(words)) is not None:
            found.append(ServeLine(tuple(arguments), {**known.values, **assigned, **_given_to_container(words)}))
    if not found:
        raise LineUnreadableError("there is no `vllm serve` in it: give the line or script that starts an engine")
    return found


def _assignments(words: list[str]) -> dict[str, str]:
    """The leading NAME=VALUE words."""
    found = {}
    for word in words:
        match = _ASSIGNED.fullmatch(word)
        if match is None:
            break
        found[match[1]] = match[2]
    return found


def _served(words: list[str]) -> list[str] | None:
    """The arguments after ``vllm serve``, or after the module that it is."""
    for number, word in enumerate(words[1:], 1):
        before = words[number - 1]
        if word == "serve" and before.rpartition("/")[2] == "vllm":
            return words[number + 1 :]
        if before == "-m" and word in _MODULES:
            return words[number + 1 :]
    return None


def _given_to_container(words: list[str]) -> dict[str, str]:
    """Variables that ``docker run`` or ``env`` give to what they run."""
    found: dict[str, str] = {}
    for number, word in enumerate(words):
        name, _, value = word.partition("=")
        if name in {"--env", "-e"}:
            given = value or (words[number + 1] if number + 1 < len(words) else "")
            found.update(_assignments([given]))
        elif number and words[0] == "env":
            found.update(_assignments([word]))
        if word == "serve":
            break
    return found


def _commands(text: str, known: _Known) -> Iterator[list[str]]:
    """Words of one command after the other; what it assigns is known to the next."""
    reader = _Reader(text, known)
    while not reader.at_end:
        if words := reader.command():
            yield words


class _Reader:
    """Goes through the text once."""

    def __init__(self, text: str, known: _Known) -> None:
        self._text = text
        self._at = 0
        self._known = known

    def __repr__(self) -> str:
        return f"_Reader(at {self._at} of {len(self._text)})"

    @property
    def at_end(self) -> bool:
        return self._at >= len(self._text)

    def command(self) -> list[str]:
        """Words up to the next separator; an array that is assigned is no word."""
        words: list[str] = []
        while not self.at_end:
            self._skip_space()
            letter = self._text[self._at : self._at + 1]
            if not letter:
                break
            if letter in {"<", ">"}:
                self._redirection(words)
            elif letter in _SEPARATORS:
                self._at += 1
                break
            else:
                self._word_into(words)
        return words

    def _skip_space(self) -> None:
        while not self.at_end:
            if self._text.startswith("\\\n", self._at):
                self._at += 2
            elif self._text[self._at] in " \t\r":
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _redirection(self, words: list[str]) -> None:
        if words and words[-1].isdigit() and self._text[self._at - 1].isdigit():
            words.pop()
        while not self.at_end and self._text[self._at] in "<>&":
            self._at += 1
        self._skip_space()
        if not self.at_end and self._text[self._at] == "(":
            return
        self._word_into([])

    def _word_into(self, words: list[str]) -> None:
        start = self._at
        pieces: list[str] = []
        whole: list[str] = []
        while not self.at_end and self._text[self._at] not in " \t\r" and self._text[self._at] not in _SEPARATORS:
            piece = self._piece(whole)
            pieces.append(piece)
        text = "".join(pieces)
        if self._text.startswith("(", self._at) and (match := _ASSIGNED.fullmatch(text)) and not match[2]:
            self._at += 1
            self._known.arrays[match[1]] = self._array()
        elif whole and text == "":
            words += whole
        elif self._at > start:
            words.append(text)

    def _piece(self, whole: list[str]) -> str:
        letter = self._text[self._at]
        if letter == "\\":
            self._at += 2
            taken = self._text[self._at - 1 : self._at]
            return "" if taken == "\n" else taken
        if letter == "'":
            return self._quoted_plainly()
        if letter == '"':
            return self._quoted(whole)
        return self._variable(whole) if letter == "$" else self._take(1)

    def _take(self, length: int) -> str:
        self._at += length
        return self._text[self._at - length : self._at]

    def _quoted_plainly(self) -> str:
        end = self._text.find("'", self._at + 1)
        if end < 0:
            raise LineUnreadableError("a single quote has no end")
        taken = self._text[self._at + 1 : end]
        self._at = end + 1
        return taken

    def _quoted(self, whole: list[str]) -> str:
        pieces: list[str] = []
        self._at += 1
        while not self.at_end:
            letter = self._text[self._at]
            if letter == '"':
                self._at += 1
                return "".join(pieces)
            if letter == "\\" and self._text[self._at + 1 : self._at + 2] in {'"', "\\", "$", "`", "\n"}:
                self._at += 2
                pieces.append(self._text[self._at - 1].replace("\n", ""))
            else:
                pieces.append(self._variable(whole) if letter == "$" else self._take(1))
        raise LineUnreadableError("a double quote has no end")

    def _variable(self, whole: list[str]) -> str:
        if self._text.startswith("$(", self._at):
            return self._substitution()
        match = _VARIABLE.match(self._text, self._at)
        if match is None:
            return self._take(1)
        self._at = match.end()
        name = match[1] or match[2]
        if name in self._known.arrays:
            whole += self._known.arrays[name]
            return ""
        return self._known.values.get(name, match[3] if match[3] is not None else match[0])

    def _substitution(self) -> str:
        """What a command would print is not known: it stays as written."""
        depth, start = 0, self._at
        while not self.at_end:
            depth += {"(": 1, ")": -1}.get(self._text[self._at], 0)
            self._at += 1
            if depth == 0 and self._at > start + 1:
                break
        return self._text[start : self._at]

    def _array(self) -> list[str]:
        words: list[str] = []
        while not self.at_end:
            self._skip_space()
            letter = self._text[self._at : self._at + 1]
            if letter == ")":
                self._at += 1
                return words
            if letter == "\n":
                self._at += 1
            elif not letter or letter in _SEPARATORS:
                break
            else:
                self._word_into(words)
        raise LineUnreadableError("an array has no end")
