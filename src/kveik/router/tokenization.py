"""Turns text into token ids as the model's tokenizer does, without doing it twice for what conversations share.

Special tokens (``<|im_end|>`` and the like) split a text before anything else looks at it, so what
stands between two of them can be tokenized by itself. A conversation that goes on has the same pieces
as before and a new one: the old ones are remembered. Whether a tokenizer really works that way is
tried on sample texts when it is loaded; one that doesn't gets each text whole.
"""

import re
from array import array
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from kveik.router.rendering import Draft

#: Memory of the pieces that are remembered.
REMEMBERED_BYTES = 32 << 20
_PIECE_BYTES = 250  # of bookkeeping

Split = Callable[[str], Sequence[str]]


class AboutTokenizer(msgspec.Struct, frozen=True):
    """What a tokenizer is like. ``special``: packed tokens by the texts at which others can be split.

    ``before`` and ``after``: what it puts around a text that is to have special tokens.
    """

    special: dict[str, bytes]
    before: bytes
    after: bytes


class Tokenizers(Protocol):
    """Models' tokenizers, by their files; all calls may take long, and raise :class:`kveik.errors.RenderError`."""

    def about(self, file: Path) -> AboutTokenizer:
        """What the tokenizer in a file is like."""

    def encode(self, file: Path, texts: Sequence[str]) -> list[bytes]:
        """The token ids of texts, 4 bytes each, without special tokens around them."""

    def text_of(self, file: Path, token: int) -> str:
        """The text of one token."""


class Tokenization:
    """One tokenizer. :meth:`encode` and :meth:`text_of` may be called on any thread, all else on one."""

    def __init__(self, file: Path, tokenizers: Tokenizers) -> None:
        """Raises :class:`RenderError` for a file that is no ``tokenizer.json``."""
        self._file, self._tokenizers = file, tokenizers
        about = tokenizers.about(file)
        self._special = about.special
        self._before, self._after = about.before, about.after
        self._split = splitter(about.special)
        # Pieces that were used lately, and those before them: what is used again moves on, the rest is dropped.
        self._pieces: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}
        self._remembered = 0

    def __repr__(self) -> str:
        return f"Tokenization({len(self._pieces) + len(self._older)} pieces)"

    def draft(self, text: str, *, special_tokens: bool) -> Draft:
        """What is known of a text."""
        known: list[bytes | None] = []
        missing = []
        for piece in pieces_of(self._split, text):
            tokens = self._special.get(piece) or self._pieces.get(piece)
            if tokens is None:
                tokens = self._older.get(piece)
                if tokens is None:
                    missing.append(piece)
                else:
                    self._remember(piece, tokens)
            known.append(tokens)
        return Draft(known, missing, special_tokens=special_tokens)

    def encode(self, draft: Draft) -> list[bytes]:
        """Tokenize what is missing: about a millisecond for 4,000 characters. Raises :class:`RenderError`."""
        return self._tokenizers.encode(self._file, draft.missing) if draft.missing else []

    def remember(self, draft: Draft, encoded: list[bytes]) -> None:
        """Keep what was tokenized, within ``REMEMBERED_BYTES``."""
        for piece, tokens in zip(draft.missing, encoded, strict=True):
            self._remember(piece, tokens)

    def packed(self, draft: Draft, encoded: list[bytes]) -> bytes:
        """All token ids of the text, 4 bytes each."""
        fresh = iter(encoded)
        tokens = b"".join(next(fresh) if one is None else one for one in draft.known)
        return b"".join((self._before, tokens, self._after)) if draft.special_tokens else tokens

    def ids(self, text: str, *, special_tokens: bool = False) -> list[int]:
        """The token ids of a text, all at once."""
        draft = self.draft(text, special_tokens=special_tokens)
        return array("I", self.packed(draft, self.encode(draft))).tolist()

    def text_of(self, token: int) -> str:
        """The text of one token; special tokens by their names."""
        return self._tokenizers.text_of(self._file, token)

    def _remember(self, piece: str, tokens: bytes) -> None:
        self._pieces[piece] = tokens
        self._remembered += len(piece) + len(tokens) + _PIECE_BYTES
        if self._remembered > REMEMBERED_BYTES // 2:
            self._older, self._pieces, self._remembered = self._pieces, {}, 0


def splitter(special: Mapping[str, bytes]) -> Split:
    """Splits a text at special tokens, which stay among the pieces."""
    by_length = sorted(map(re.escape, special), key=len, reverse=True)
    return re.compile(f"({'|'.join(by_length)})").split if by_length else _whole


def pieces_of(split: Split, text: str) -> list[str]:
    """The pieces of a text; none is empty."""
    return [piece for piece in split(text) if piece]


def _whole(text: str) -> list[str]:
    return [text]
