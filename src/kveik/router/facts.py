"""What the router knows of one request, read once from its body."""

import msgspec
import numpy as np
from numpy.typing import NDArray

NO_KEYS: NDArray[np.uint64] = np.empty(0, np.uint64)


class RequestFacts(msgspec.Struct, eq=False, gc=False):
    """The part of a body that decisions need.

    ``keys`` are chained hashes of the prompt's prefix, one a prefix block of ``PREFIX_BLOCK_BYTES``
    bytes of text: equal keys mean equal text from the start up to the end of that block.
    ``prompt_bytes``: the text that keys are made of. ``prompt_tokens`` is an estimate unless the
    body has token ids. ``model`` is empty where the body names none. ``resumable``: plain text
    generation with one choice that another engine could continue after a cut (greedy or seeded; no
    tools, no grammar, no log probabilities). ``session`` comes from a header, not from the body.
    """

    model: str = ""
    stream: bool = False
    prompt_bytes: int = 0
    prompt_tokens: int = 0
    max_tokens: int = 0
    keys: NDArray[np.uint64] = NO_KEYS
    session: str = ""
    resumable: bool = False
