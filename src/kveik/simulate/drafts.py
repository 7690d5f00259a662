"""What a simulated engine answers: words that follow from the text before them, and from nothing else."""

from collections.abc import Sequence

import xxhash

from kveik.simulate.tokenizer import TOKEN_BYTES, WORDS, token_ids

#: Log probability of the best candidate, and how much less each following one has.
_BEST, _STEP = -0.3, -0.4
_SPREAD = 1021  # odd, so that the candidates of one position differ

_IDS = token_ids(b"".join(WORDS))
_MASK = len(WORDS) - 1


class Draft:
    """One answer as it grows, at most ``limit`` words, one a token.

    The next word depends on all text before it, prompt and answer alike, as with greedy decoding:
    whoever continues a cut answer from its text gets the same words. ``choice`` makes the answers
    of one request differ.
    """

    def __init__(self, context: bytes, choice: int, limit: int, finish: str, stops: Sequence[str] = ()) -> None:
        self.limit = limit
        self.finish = finish
        self.stopped_by: str | None = None
        self.words: list[int] = []
        self._hash = xxhash.xxh3_64(context, seed=choice)
        self._cut: bytes | None = None  # what is left of the last word before a stop string
        if stops:
            self._stop_at(stops, Draft(context, choice, limit, finish))

    @property
    def ended(self) -> bool:
        """Whether the last word is there."""
        return len(self.words) >= self.limit

    def grow(self, count: int = 1) -> list[bytes]:
        """The next ``count`` words, or as many as there are: four bytes each that JSON needs not escape.

        Before a stop string the last one is shorter.
        """
        digest, update, numbers = self._hash.intdigest, self._hash.update, self.words
        grown = []
        for _ in range(min(count, self.limit - len(numbers))):
            number = digest() & _MASK
            word = WORDS[number]
            update(word)
            numbers.append(number)
            grown.append(word)
        if self._cut is not None and grown and self.ended:
            grown[-1] = self._cut
        return grown

    def rest(self) -> str:
        """All words that are still to come, as text."""
        return b"".join(self.grow(self.limit)).decode()

    def token_id(self, position: int = -1) -> int:
        """The token at a position."""
        return _IDS[self.words[position]]

    def packed(self) -> bytes:
        """All tokens so far, packed."""
        return b"".join([WORDS[number] for number in self.words])

    def candidates(self, count: int, noise: float = 0.0) -> dict[int, float]:
        """The ``count`` best tokens for the last position and their log probabilities, best first."""
        first = self.words[-1]
        return {_IDS[(first + rank * _SPREAD) & _MASK]: _BEST + _STEP * rank + noise for rank in range(count)}

    def _stop_at(self, stops: Sequence[str], ahead: "Draft") -> None:
        """Look ahead and let the answer end before the first stop string."""
        text = b"".join(ahead.grow(self.limit))
        found = [(at, stop) for stop in stops if stop and (at := text.find(stop.encode("utf8", "replace"))) >= 0]
        if found:
            at, self.stopped_by = min(found)
            self.finish = "stop"
            self.limit = max(1, -(-at // TOKEN_BYTES))
            self._cut = text[(self.limit - 1) * TOKEN_BYTES : at]
