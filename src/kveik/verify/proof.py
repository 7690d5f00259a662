"""Carry out the legs on real engines and collect what was observed. Nothing is judged here."""

import secrets
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from kveik.engine.client import (
    MAX_TOP_LOGPROBS,
    Completion,
    CompletionRequest,
    EngineClient,
    EngineStatusError,
)
from kveik.engine.metrics import MetricsSnapshot
from kveik.errors import EngineError, VerifyError
from kveik.verify.legs import Batch, Leg, LegRun, Mode, foreign_tokens
from kveik.verify.prompts import Prompt
from kveik.verify.settle import QUIET_S, wait_counted, wait_saved

#: Requests that a concurrent leg has under way at most.
AT_ONCE = 8

#: Tells a person what happens now.
Say = Callable[[str], None]


@dataclass(frozen=True)
class Subject:
    """An engine under proof. ``restart`` kills it with -9 and returns when it serves again.

    ``written`` waits until other nodes can find what it saved; None where it shares its agent with the others.
    """

    name: str
    client: EngineClient
    model: str
    restart: Callable[[], None] | None = None
    written: Callable[[], None] | None = None

    def tokenize(self, text: str) -> tuple[int, ...]:
        """Text to token ids, as this engine's model wants them."""
        return self.client.tokenize(text, self.model)


@dataclass(frozen=True, kw_only=True)
class ProofPlan:
    """What to carry out.

    ``settle_s`` bounds the wait for saves and for counters; saves are over when the counters have
    been still for ``quiet_s``.
    """

    prompts: Sequence[Prompt]
    legs: Sequence[Leg] = tuple(Leg)
    modes: Sequence[Mode] = tuple(Mode)
    answer_tokens: int = 16
    settle_s: float = 20.0
    quiet_s: float = QUIET_S
    unit_tokens: int


class Proof:
    """One run of the proof over one or two engines.

    All prompts of one mode carry a fresh cache salt, so a cold run is really cold whatever the
    caches hold, and nothing of it is ever a hit for anybody else.
    """

    def __init__(self, plan: ProofPlan, first: Subject, second: Subject | None, say: Say) -> None:
        self._plan = plan
        self._first = first
        self._second = second
        self._say = say
        self._salt = f"kveik-verify-{secrets.token_hex(8)}"

    def check_possible(self) -> None:
        """Whether every leg can be carried out at all.

        Raises :class:`~kveik.errors.VerifyError` naming the leg, what it needs and how to leave it out.
        """
        legs = self._plan.legs
        if Leg.OTHER in legs and self._second is None:
            raise VerifyError("leg other needs a second engine (or --skip other)")
        if Leg.RESTART in legs and self._first.restart is None:
            raise VerifyError("leg restart needs a way to kill and restart the engine (or --skip restart)")
        for subject in self._subjects():
            snapshot = subject.client.metrics()
            if any(leg.external for leg in legs) and not snapshot.has_connector:
                raise VerifyError(f"{subject.name} exports no kveik metrics: Kveik's connector is not loaded there")
            if snapshot.busy:
                raise VerifyError(f"{subject.name} serves {snapshot.busy} requests now; the proof needs an idle engine")
        if Leg.RESET in legs:
            self._reset(self._first)

    def run(self) -> list[LegRun]:
        """All legs in all modes. Raises EngineError or VerifyError when one can't be carried out."""
        runs = []
        for mode in self._plan.modes:
            on_first = [leg for leg in (Leg.COLD, Leg.LOCAL, Leg.RESET) if leg in self._plan.legs]
            runs += [self._leg(leg, mode, self._first) for leg in on_first]
            if Leg.OTHER in self._plan.legs and self._second is not None:
                runs.append(self._leg(Leg.OTHER, mode, self._second))
        if Leg.RESTART in self._plan.legs and self._first.restart is not None:
            self._say(f"{self._first.name}: kill -9 and restart")
            self._first.restart()
            runs += [self._leg(Leg.RESTART, mode, self._first) for mode in self._plan.modes]
        return runs

    def _subjects(self) -> Iterable[Subject]:
        return [self._first] if self._second is None else [self._first, self._second]

    def _leg(self, leg: Leg, mode: Mode, subject: Subject) -> LegRun:
        if leg is Leg.RESET:
            self._reset(subject)
        self._say(f"{subject.name}: {leg.value}, {mode.value}, {len(self._plan.prompts)} prompts")
        prompts = tuple(self._plan.prompts)
        groups = together(prompts, 1 if mode is Mode.SINGLE else AT_ONCE)
        before_leg = subject.client.metrics()
        run = LegRun(leg, mode, tuple(self._batch(group, mode, subject) for group in groups))
        if leg is Leg.COLD:
            self._wait_saved(subject, before_leg)
        return run

    def _batch(self, prompts: tuple[Prompt, ...], mode: Mode, subject: Subject) -> Batch:
        """Run these prompts at the same time between two readings of the counters."""
        before = subject.client.metrics()
        with ThreadPoolExecutor(len(prompts)) as pool:
            completions = tuple(pool.map(lambda prompt: self._ask(prompt, mode, subject), prompts))
        tokens = sum(prompt.tokens for prompt in prompts)
        settled = wait_counted(subject.client, before, tokens, self._plan.settle_s)
        batch = Batch(prompts, completions, settled.evidence)
        if foreign := foreign_tokens(batch):
            raise VerifyError(
                f"{subject.name} counted {foreign:+d} prompt tokens that are not ours: "
                "another client uses it, and counters would prove nothing"
            )
        return batch

    def _ask(self, prompt: Prompt, mode: Mode, subject: Subject) -> Completion:
        salt = f"{self._salt}-{mode.value}-{prompt.name}"
        request = CompletionRequest(prompt.token_ids, self._plan.answer_tokens, MAX_TOP_LOGPROBS, salt)
        return subject.client.complete(request, subject.model)

    def _wait_saved(self, subject: Subject, before: MetricsSnapshot) -> None:
        if before.has_connector:
            blocks = sum(prompt.tokens // self._plan.unit_tokens for prompt in self._plan.prompts)
            wait_saved(subject.client, before, blocks, self._plan.settle_s, self._plan.quiet_s)
            if subject.written is not None:
                subject.written()

    def _reset(self, subject: Subject) -> None:
        try:
            subject.client.reset_local_cache()
        except EngineStatusError as error:
            raise VerifyError(
                f"leg reset needs {subject.name} started with VLLM_SERVER_DEV_MODE=1 (or --skip reset): {error}"
            ) from error
        except EngineError as error:
            raise VerifyError(f"leg reset cannot be carried out (or --skip reset): {error}") from error


def together(prompts: tuple[Prompt, ...], at_once: int) -> list[tuple[Prompt, ...]]:
    """The prompts in as few groups of at most ``at_once`` as possible, each with short and long ones."""
    count = -(-len(prompts) // at_once)
    return [prompts[first::count] for first in range(count)]
