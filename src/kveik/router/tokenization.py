"""Turns text into token ids as the model's tokenizer does, without doing it twice for what conversations share.

Special tokens (``<|im_end|>`` and the like) split a text before anything else looks at it, so what
stands between two of them can be tokenized by itself. A conversation that goes on has the same pieces
as before and a new one: the old ones are remembered. Whether a tokenizer really works that way is
tried on sample texts when it is loaded; one that doesn't gets each text whole.
"""

import re
from array import array
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kveik.errors import RenderError
from kveik.router.rendering import Draft

#: Memory of the pieces that are remembered.
REMEMBERED_BYTES = 32 << 20
_PIECE_BYTES = 250  # of bookkeeping

_SAMPLES = (
    "Hello world",
    " leading and trailing space ",
    "line\nline\n\nline",
    "中文，标点。 emoji 👩‍👩‍👧‍👦 e\u0301",
    "1234567890 a1b2",
    "",
)


class Tokenization:
    """One tokenizer. :meth:`encode` may be called on any thread, all else on one."""

    def __init__(self, file: Path) -> None:
        """Raises :class:`RenderError` for a file that is no ``tokenizer.json``."""
        try:
            self._tokenizer: Any = Tokenizer.from_file(str(file))
        except Exception as error:  # tokenizers raises bare Exception, for a missing file as well
            raise RenderError(f"no tokenizer in {file}: {error}") from error
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        special = [
            (token.content, number)
            for number, token in self._tokenizer.get_added_tokens_decoder().items()
            if token.special and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        ]
        self._special = {text: array("I", [number]).tobytes() for text, number in special}
        self._before, self._after = self._around()
        # Pieces that were used lately, and those before them: what is used again moves on, the rest is dropped.
        self._pieces: dict[str, bytes] = {}
        self._older: dict[str, bytes] = {}
        self._remembered = 0
        by_length = sorted(map(re.escape, self._special), key=len, reverse=True)
        self._split = re.compile(f"({'|'.join(by_length)})").split if by_length else _whole
        if not self._splits_soundly():
            self._special, self._split = {}, _whole

    def __repr__(self) -> str:
        return f"Tokenization({len(self._pieces) + len(self._older)} pieces)"

    def draft(self, text: str, *, special_tokens: bool) -> Draft:
        """What is known of a text."""
        known: list[bytes | None] = []
        missing = []
        for piece in self._split(text):
            if not piece:
                continue
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
        """Tokenize what is missing: about a millisecond for 4,000 characters."""
        return [self._ids(piece) for piece in draft.missing]

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
        text: str = self._tokenizer.decode([token], skip_special_tokens=False)
        return text

    def _remember(self, piece: str, tokens: bytes) -> None:
        self._pieces[piece] = tokens
        self._remembered += len(piece) + len(tokens) + _PIECE_BYTES
        if self._remembered > REMEMBERED_BYTES // 2:
            self._older, self._pieces, self._remembered = self._pieces, {}, 0

    def _ids(self, text: str) -> bytes:
        return array("I", self._tokenizer.encode(text, add_special_tokens=False).ids).tobytes()

    def _around(self) -> tuple[bytes, bytes]:
        """What the tokenizer puts before and after a text with its special tokens."""
        inner = self._tokenizer.encode("a", add_special_tokens=False).ids
        outer = self._tokenizer.encode("a", add_special_tokens=True).ids
        for start in range(len(outer) - len(inner) + 1):
            if outer[start : start + len(inner)] == inner:
                return array("I", outer[:start]).tobytes(), array("I", outer[start + len(inner) :]).tobytes()
        raise RenderError("its tokenizer changes a text when it puts special tokens around it")

    def _splits_soundly(self) -> bool:
        marks = list(self._special)[:3] or [""]
        texts = [*_SAMPLES, *(mark.join(_SAMPLES) for mark in marks), "\n".join(mark + "a\n" for mark in marks)]
        return all(self.ids(text) == self._tokenizer.encode(text, add_special_tokens=False).ids for text in texts)


def _whole(text: str) -> list[str]:
    return [text]
