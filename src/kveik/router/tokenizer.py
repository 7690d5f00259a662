"""Models' tokenizers, by their files. Holds up everything in its process while it loads one, or lets one go.

So a router runs this in a process of its own (:mod:`kveik.router.tokenizer_process`); tests and tools
use it as it is.
"""

from array import array
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from kveik.errors import RenderError
from kveik.router.tokenization import AboutTokenizer, pieces_of, splitter

#: Texts on which it is tried whether pieces between special tokens can be tokenized by themselves.
_SAMPLES = (
    "Hello world",
    " leading and trailing space ",
    "line\nline\n\nline",
    "中文，标点。 emoji 👩‍👩‍👧‍👦 e\u0301",
    "1234567890 a1b2",
    "",
)


class TokenizerFiles:
    """Tokenizers of this process, loaded when they are first asked for."""

    def __init__(self) -> None:
        self._loaded: dict[Path, Any] = {}

    def about(self, file: Path) -> AboutTokenizer:
        """What the tokenizer in a file is like, read anew. Raises :class:`RenderError` if there is none."""
        self._loaded.pop(file, None)
        tokenizer = self._tokenizer(file)
        special = {
            token.content: _packed([number])
            for number, token in tokenizer.get_added_tokens_decoder().items()
            if token.special and not (token.normalized or token.lstrip or token.rstrip or token.single_word)
        }
        before, after = _around(tokenizer)
        return AboutTokenizer(special if _splits_soundly(tokenizer, special) else {}, before, after)

    def encode(self, file: Path, texts: Sequence[str]) -> list[bytes]:
        """The token ids of texts, without special tokens around them. Raises :class:`RenderError`."""
        tokenizer = self._tokenizer(file)
        return [_packed(tokenizer.encode(text, add_special_tokens=False).ids) for text in texts]

    def text_of(self, file: Path, token: int) -> str:
        """The text of one token; special tokens by their names. Raises :class:`RenderError`."""
        text: str = self._tokenizer(file).decode([token], skip_special_tokens=False)
        return text

    def _tokenizer(self, file: Path) -> Any:
        tokenizer = self._loaded.get(file)
        if tokenizer is None:
            try:
                tokenizer = Tokenizer.from_file(str(file))
            except Exception as error:  # tokenizers raises bare Exception, for a missing file as well
                raise RenderError(f"no tokenizer in {file}: {error}") from error
            tokenizer.no_truncation()
            tokenizer.no_padding()
            self._loaded[file] = tokenizer
        return tokenizer


def _packed(ids: Sequence[int]) -> bytes:
    return array("I", ids).tobytes()


def _around(tokenizer: Any) -> tuple[bytes, bytes]:
    """What the tokenizer puts before and after a text with its special tokens."""
    inner = tokenizer.encode("a", add_special_tokens=False).ids
    outer = tokenizer.encode("a", add_special_tokens=True).ids
    for start in range(len(outer) - len(inner) + 1):
        if outer[start : start + len(inner)] == inner:
            return _packed(outer[:start]), _packed(outer[start + len(inner) :])
    raise RenderError("its tokenizer changes a text when it puts special tokens around it")


def _splits_soundly(tokenizer: Any, special: dict[str, bytes]) -> bool:
    """Whether pieces between special tokens have the tokens that they have in the whole text."""
    split = splitter(special)
    marks = list(special)[:3] or [""]
    texts = [*_SAMPLES, *(mark.join(_SAMPLES) for mark in marks), "\n".join(mark + "a\n" for mark in marks)]

    def whole(text: str) -> bytes:
        return _packed(tokenizer.encode(text, add_special_tokens=False).ids)

    def by_pieces(text: str) -> bytes:
        return b"".join(special.get(piece) or whole(piece) for piece in pieces_of(split, text))

    return all(by_pieces(text) == whole(text) for text in texts)
