"""What it takes to turn requests' bodies into tokens: the steps, and what needs no model's files.

With the model's files: :mod:`kveik.router.model_folder`, which is loaded only where it is used, since
tokenizers and templates take memory.
"""

from array import array
from typing import Protocol

from kveik.errors import RenderError
from kveik.router.conversation import Ids, read_prompt
from kveik.router.facts import TokenPrompt


class Draft:
    """A text on its way to tokens: what is known, and the pieces that must be tokenized."""

    __slots__ = ("known", "missing", "missing_chars", "special_tokens")

    def __init__(self, known: list[bytes | None], missing: list[str], *, special_tokens: bool) -> None:
        self.known = known
        self.missing = missing
        self.missing_chars = sum(map(len, missing))
        self.special_tokens = special_tokens


class Unfinished:
    """A prompt that is rendered but not all tokenized yet."""

    __slots__ = ("draft", "encoded", "salt")

    def __init__(self, draft: Draft, salt: str) -> None:
        self.draft = draft
        self.salt = salt
        self.encoded: list[bytes] = []

    @property
    def missing_chars(self) -> int:
        """Characters that are still to be tokenized."""
        return self.draft.missing_chars


class Renders(Protocol):
    """Turns bodies into tokens as one model's engines do. A prompt goes through three steps, or through all at once."""

    @property
    def fingerprint(self) -> str:
        """Equal for those that make the same of every body."""

    def begin(self, target: bytes, body: bytes) -> TokenPrompt | Unfinished:
        """Read and render a body. Raises :class:`RenderError`."""

    def encode(self, unfinished: Unfinished) -> None:
        """Tokenize what is missing: what takes long. May be called on any thread."""

    def finish(self, unfinished: Unfinished) -> TokenPrompt:
        """The prompt, after :meth:`encode`."""

    def prompt(self, target: bytes, body: bytes) -> TokenPrompt:
        """All at once. Raises :class:`RenderError`."""

    def text_of(self, token: int) -> str:
        """The text of one token, for people."""


def given_ids(target: bytes, body: bytes) -> TokenPrompt:
    """The prompt of a body that has its token ids: no model's folder is needed. Raises :class:`RenderError`."""
    prompt, salt = read_prompt(target, body)
    if not isinstance(prompt, Ids):
        raise RenderError("the prompt isn't given as token ids")
    return TokenPrompt(array("I", prompt.ids).tobytes(), salt)
