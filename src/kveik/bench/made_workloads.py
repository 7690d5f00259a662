"""Workloads that are made up: repeated prefixes, shared documents, growing chats. Pure."""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from kveik.bench.planned import Planned, TokenPool, Workload
from kveik.errors import ConfigError


def _check_positive(name: str, parameters: dict[str, int | float | str], may_be_zero: Sequence[str] = ()) -> None:
    for parameter, value in parameters.items():
        least = 0 if parameter in may_be_zero else 1
        if isinstance(value, int) and value < least:
            raise ConfigError(f"{parameter} of {name} is {value}, expected at least {least}")


@dataclass(frozen=True, kw_only=True)
class PrefixRepetition:
    """A few prefixes, each with many suffixes: ``vllm bench serve --dataset-name prefix_repetition``.

    As there, each prefix gets ``requests // prefixes`` requests, and all are shuffled.
    """

    requests: int = 40
    prefixes: int = 10
    prefix_tokens: int = 256
    suffix_tokens: int = 256
    answer_tokens: int = 128

    def workload(self, pool: TokenPool, seed: int) -> Workload:
        """The requests. Raises :class:`ConfigError` for numbers that do not go together."""
        parameters = asdict(self)
        _check_positive("prefix", parameters, ("suffix_tokens",))
        if self.requests < self.prefixes:
            raise ConfigError(f"{self.requests} requests for {self.prefixes} prefixes, expected at least one for each")
        planned = [
            Planned(
                pool.draw(f"prefix {prefix}", self.prefix_tokens)
                + pool.draw(f"prefix {prefix} suffix {suffix}", self.suffix_tokens),
                self.answer_tokens,
            )
            for prefix in range(self.prefixes)
            for suffix in range(self.requests // self.prefixes)
        ]
        random.Random(f"prefix order/{seed}").shuffle(planned)
        return Workload("prefix", planned, {**parameters, "requests": len(planned)})


@dataclass(frozen=True, kw_only=True)
class SharedDocuments:
    """Several questions on each of the same long documents, in shuffled order."""

    documents: int = 4
    questions: int = 8
    document_tokens: int = 2048
    question_tokens: int = 32
    answer_tokens: int = 64

    def workload(self, pool: TokenPool, seed: int) -> Workload:
        """The requests. Raises :class:`ConfigError` for a number that is none."""
        parameters = asdict(self)
        _check_positive("documents", parameters)
        planned = [
            Planned(
                pool.draw(f"document {document}", self.document_tokens)
                + pool.draw(f"document {document} question {question}", self.question_tokens),
                self.answer_tokens,
            )
            for document in range(self.documents)
            for question in range(self.questions)
        ]
        random.Random(f"question order/{seed}").shuffle(planned)
        return Workload("documents", planned, parameters)


@dataclass(frozen=True, kw_only=True)
class GrowingChats:
    """Chats whose history grows: each turn sends all turns before it again.

    The engine's answers are not sent back: their places are taken by made-up ones of the same length. So both sides
    of a comparison get the same prompts, whatever they answer. All chats begin with the same ``system_tokens``.
    """

    chats: int = 8
    turns: int = 5
    system_tokens: int = 256
    turn_tokens: int = 64
    answer_tokens: int = 64
    think_s: float = 0.0

    def workload(self, pool: TokenPool, seed: int) -> Workload:
        """The requests: turn by turn over all chats. Raises :class:`ConfigError` for a number that is none."""
        parameters = asdict(self)
        _check_positive("chats", parameters, ("system_tokens",))
        if not 0 <= self.think_s <= 3600:
            raise ConfigError(f"think_s of chats is {self.think_s:g}, expected 0 to 3600")
        system = pool.draw("system", self.system_tokens)
        histories = dict.fromkeys(range(self.chats), system)
        planned: list[Planned] = []
        for turn in range(self.turns):
            for chat in range(self.chats):
                prompt = histories[chat] + pool.draw(f"chat {chat} turn {turn}", self.turn_tokens)
                after = len(planned) - self.chats if turn else -1
                planned.append(Planned(prompt, self.answer_tokens, after=after, think_s=self.think_s))
                histories[chat] = prompt + pool.draw(f"chat {chat} answer {turn}", self.answer_tokens)
        return Workload("chats", planned, parameters)
