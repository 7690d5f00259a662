"""What a simulated engine answers: words that follow from the text before them, and from nothing else."""

from collections.abc import Sequence

import xxhash

from kveik.simulate.tokenizer import WORDS, token_ids

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

    def grow(self) -> bytes:
        """The next word: four bytes that JSON needs not escape (fewer before a stop string)."""
        number = self._hash.intdigest() & _MASK
        self.words.append(number)
        word = WORDS[number]
        self._hash.update(word)
        return word if self._cut is None or not self.ended else self._cut

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
        text = b""
        for length in range(1, self.limit + 1):
            text += ahead.grow()
            found = [(at, stop) for stop in stops if stop and (at := text.find(stop.encode("utf8", "replace"))) >= 0]
            if found:
                at, self.stopped_by = min(found)
                self.finish = "stop"
                self.limit = min(length, max(1, -(-at // 4)))
                self._cut = text[(self.limit - 1) * 4 : at]
                return
