"""What a benchmark will ask: requests, their order in time, and the tokens they are made of. Pure.

Everything follows from a seed, so the same prompts can be sent again: to the other side of a comparison, in the
next round, or on another day. What keeps runs apart is not the prompts but the cache salt that each run gets.
"""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kveik.errors import ConfigError
from kveik.verify.prompts import LANGUAGES, text_of

#: Sentences of each language whose tokens make the pool.
_POOL_SENTENCES = 200
#: Fewer different tokens would make prompts alike by chance.
_POOL_MIN = 16


@dataclass(frozen=True, slots=True)
class Planned:
    """One request. ``due_s``: seconds after the start of the run at which it is meant to be sent.

    ``after`` is the number of the request whose end it waits for, -1 for none; it is then due ``think_s`` after that.
    """

    prompt: tuple[int, ...]
    answer_tokens: int
    due_s: float = 0.0
    after: int = -1
    think_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Workload:
    """Requests of one kind. ``parameters`` say how they were made, by the names of the flags.

    ``timed``: requests have moments at which they are due; otherwise each is sent as soon as there is a free place.
    """

    name: str
    requests: Sequence[Planned]
    parameters: Mapping[str, int | float | str] = field(default_factory=dict)
    timed: bool = False

    @property
    def prompt_tokens(self) -> int:
        """Tokens of all prompts."""
        return sum(len(request.prompt) for request in self.requests)

    @property
    def answer_tokens(self) -> int:
        """Tokens of all answers."""
        return sum(request.answer_tokens for request in self.requests)

    def check_fits(self, max_model_tokens: int) -> None:
        """Raises :class:`ConfigError` when a prompt with its answer is longer than the model takes (0: not known)."""
        longest = max(len(request.prompt) + request.answer_tokens for request in self.requests)
        if max_model_tokens and longest > max_model_tokens:
            raise ConfigError(
                f"the longest prompt of {self.name} has {longest} tokens with its answer, expected at most "
                f"{max_model_tokens}, which is what the model takes: ask for shorter ones"
            )


class TokenPool:
    """Tokens that the model knows, drawn by name: the same name gives the same tokens, another name others."""

    def __init__(self, token_ids: Sequence[int], seed: int | str) -> None:
        """Raises :class:`ConfigError` for too few different tokens."""
        self._ids = sorted(set(token_ids))
        self._seed = seed
        if len(self._ids) < _POOL_MIN:
            raise ConfigError(f"{len(self._ids)} different tokens are known, expected at least {_POOL_MIN}")

    def renamed(self, nonce: str) -> "TokenPool":
        """The same tokens in an order that nobody has seen before, if nobody has seen ``nonce``."""
        return TokenPool(self._ids, f"{self._seed}/{nonce}")

    def draw(self, name: str, count: int) -> tuple[int, ...]:
        """So many tokens."""
        return tuple(random.Random(f"{self._seed}/{name}").choices(self._ids, k=count))


def pool_of(tokenize: Callable[[str], Sequence[int]], seed: int) -> TokenPool:
    """The tokens of sentences in several languages, without those that the model wants before any text."""
    found = [tokenize(text_of(language, _POOL_SENTENCES, seed)) for language in LANGUAGES]
    first = {tokens[0] for tokens in found if tokens}
    special = first if len(first) == 1 else set()
    return TokenPool([token for tokens in found for token in tokens if token not in special], seed)
