"""What the router knows of one request, read once from its body."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

NO_KEYS: Final[NDArray[np.uint64]] = np.empty(0, np.uint64)
#: One token id in a packed prompt.
TOKEN_BYTES: Final = 4


class TokenPrompt:
    """A prompt as the engine will see it.

    ``packed``: its token ids, 4 bytes each, as this machine writes numbers. ``salt``: its cache salt.
    ``rendering``: what turned it into tokens (see :mod:`kveik.router.rendering`); empty where the
    body had the ids. ``chains``: keys by block size, kept once computed. ``guessed``: engines (one
    bit a slot) of which more is expected than their events tell.
    """

    __slots__ = ("chains", "guessed", "packed", "rendering", "salt")

    def __init__(self, packed: bytes, salt: str = "", rendering: str = "") -> None:
        self.packed, self.salt, self.rendering = packed, salt, rendering
        self.chains: dict[int, NDArray[np.uint64]] = {}
        self.guessed = 0

    def __len__(self) -> int:
        return len(self.packed) // TOKEN_BYTES


class RequestFacts:
    """The part of a body that decisions need.

    ``keys`` are chained hashes of the prompt's prefix, one a prefix block of ``PREFIX_BLOCK_BYTES``
    bytes of text: equal keys mean equal text from the start up to the end of that block.
    ``prompt_bytes``: the text that keys are made of. ``prompt_tokens`` is an estimate unless the
    body has token ids. ``model`` is empty where the body names none. ``resumable``: a stream of
    plain text with one choice that another engine could continue after a cut (greedy or seeded; no
    tools, no grammar, no log probabilities). ``session`` comes from a header, not from the body.
    ``prompt``: its tokens, where they are known (then ``prompt_tokens`` is no estimate).
    """

    __slots__ = (
        "keys", "max_tokens", "model", "prompt", "prompt_bytes", "prompt_tokens", "resumable", "session", "stream",
    )  # fmt: skip

    def __init__(
        self,
        model: str = "",
        stream: bool = False,
        prompt_bytes: int = 0,
        prompt_tokens: int = 0,
        max_tokens: int = 0,
        keys: NDArray[np.uint64] = NO_KEYS,
        *,
        session: str = "",
        resumable: bool = False,
        prompt: TokenPrompt | None = None,
    ) -> None:
        self.model, self.stream = model, stream
        self.prompt_bytes, self.prompt_tokens, self.max_tokens = prompt_bytes, prompt_tokens, max_tokens
        self.keys = keys
        self.session = session
        self.resumable = resumable
        self.prompt = prompt
