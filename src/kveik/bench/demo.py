"""The demonstration: two real engines behind one address, one shared cache, and what a prompt costs over each route."""

import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kveik.bench.fleet import FleetPlan, RunningFleet
from kveik.bench.service import Outage, Service
from kveik.bench.workload import HIT_REPEATS, Measurement, Route, Row, cold_repeats, rows
from kveik.engine.client import MAX_TOP_LOGPROBS, Completion, CompletionRequest
from kveik.errors import VerifyError
from kveik.verify.prompts import Prompt, build_prompt
from kveik.verify.proof import Say, Subject
from kveik.verify.settle import wait_counted, wait_saved

SETTLE_S = 60.0
#: Room for the longest prompt, its answer and the cold run of another one.
_SPARE_TOKENS = 512


@dataclass(frozen=True, kw_only=True)
class DemoPlan:
    """What to demonstrate. The dtype is float32, where equal means equal to the last token."""

    model: Path
    engine_python: str
    folder: Path
    lengths: Sequence[int]
    answer_tokens: int = 8

    @property
    def fleet(self) -> FleetPlan:
        """The agent, engines, router and watchdog for it."""
        longest = max(self.lengths) + self.answer_tokens
        return FleetPlan(
            model=self.model,
            engine_python=self.engine_python,
            folder=self.folder,
            dtype="float32",
            max_model_tokens=longest + self.answer_tokens,
            # The connector holds at most half of the engine's blocks while it saves them.
            engine_tokens=4 * longest,
            shared_tokens=sum((length + _SPARE_TOKENS) * cold_repeats(length) for length in self.lengths),
        )


@dataclass(frozen=True, slots=True)
class Demonstrated:
    """What was measured: rows by prompt length, and what clients saw while an engine was killed."""

    rows: list[Row]
    outage: Outage

    @property
    def fine(self) -> bool:
        """Whether all answers were equal and no request failed but what the killed engine had begun."""
        return all(row.equal for row in self.rows) and self.outage.fine


class Demo:
    """One demonstration on two running engines.

    Every prompt goes through the one address that clients know; what became of it is read from the
    engines' own counters. Each run has its own cache salt, so cold is cold. ``answer_tokens`` is the
    length of each answer.
    """

    def __init__(self, service: Service, answer_tokens: int, say: Say) -> None:
        self._service = service
        self._first, self._second = service.first, service.second
        self._answer_tokens = answer_tokens
        self._say = say
        self._salt = f"kveik-demo-{secrets.token_hex(8)}"
        self._front = service.first.client

    def run(self, lengths: Sequence[int]) -> Demonstrated:
        """All lengths (tokens) over all routes. Raises EngineError or VerifyError when that is not possible."""
        prompts = [self._prompts(length) for length in lengths]
        self._turn_to(self._first, lengths)
        measurements = []
        for same_length in prompts:
            measurements += [self._cold(same_length), self._hits(Route.LOCAL, same_length[0], self._first)]
        self._turn_to(self._second, lengths)
        for same_length in prompts:
            measurements.append(self._hits(Route.OTHER, same_length[0], self._second))
        outage = self._service.lose(self._first)
        self._turn_to(self._first, lengths)
        for same_length in prompts:
            measurements.append(self._hits(Route.RESTART, same_length[0], self._first))
        return Demonstrated(rows(measurements), outage)

    def _turn_to(self, engine: Subject, lengths: Sequence[int]) -> None:
        """Have requests answered by this engine, whose first ones pay for things that no route is to blame for."""
        self._front = self._service.through(engine)
        prompt = build_prompt(engine.tokenize, "en", min(512, max(lengths)), 99)
        for salt in (f"warm-up-{secrets.token_hex(4)}",) * 2:
            self._ask(prompt, engine, salt)

    def _prompts(self, tokens: int) -> list[Prompt]:
        return [build_prompt(self._first.tokenize, "en", tokens, seed) for seed in range(cold_repeats(tokens))]

    def _cold(self, prompts: Sequence[Prompt]) -> Measurement:
        tokens = prompts[0].tokens
        before = self._first.client.metrics()
        answers = []
        for seed, prompt in enumerate(prompts):
            answers.append(self._ask(prompt, self._first, self._salt_of(prompt, seed)))
            settled = wait_counted(self._first.client, before, tokens * len(answers), SETTLE_S)
            found = settled.evidence
            if found.computed != found.prompt:
                raise VerifyError(f"a cold run was not cold: {found.local} tokens local, {found.external} shared")
            blocks = tokens // settled.snapshot.block_tokens
            wait_saved(self._first.client, before, blocks * len(answers), SETTLE_S)
        measured = Measurement(tokens, Route.COLD, [answer.ttft_s for answer in answers], answers[:1], 0)
        self._announce(measured)
        return measured

    def _hits(self, route: Route, prompt: Prompt, engine: Subject) -> Measurement:
        answers, hits = [], []
        for _ in range(HIT_REPEATS):
            if route.shared:
                engine.client.reset_local_cache()
            before = engine.client.metrics()
            answers.append(self._ask(prompt, engine, self._salt_of(prompt, 0)))
            found = wait_counted(engine.client, before, prompt.tokens, SETTLE_S).evidence
            hits.append(found.external if route.shared else found.local)
            if route.shared and found.local:
                raise VerifyError(f"{found.local} tokens came from the engine's own cache, which was emptied")
        if not min(hits):
            raise VerifyError(f"{prompt.tokens} tokens over {route.value}: no token came from there")
        measured = Measurement(prompt.tokens, route, [answer.ttft_s for answer in answers], answers, min(hits))
        self._announce(measured)
        return measured

    def _salt_of(self, prompt: Prompt, seed: int) -> str:
        """Prompts of all lengths begin alike; their salts keep them apart."""
        return f"{self._salt}-{prompt.tokens}-{seed}"

    def _ask(self, prompt: Prompt, engine: Subject, salt: str) -> Completion:
        request = CompletionRequest(prompt.token_ids, self._answer_tokens, MAX_TOP_LOGPROBS, salt)
        return self._front.complete(request, engine.model)

    def _announce(self, measured: Measurement) -> None:
        spread = f"{min(measured.ttfts_s):.3f}..{max(measured.ttfts_s):.3f}"
        source = f", {measured.hit_tokens} tokens from the cache" if measured.hit_tokens else ""
        self._say(
            f"{measured.tokens:5} tokens, {measured.route.value}: first token after {measured.ttft_s:.3f} s "
            f"({len(measured.ttfts_s)} runs, {spread}){source}"
        )


def demonstrate(plan: DemoPlan, say: Say) -> Demonstrated:
    """Start everything as ``kveik up`` does, measure, stop everything. Raises :class:`~kveik.errors.KveikError`."""
    with RunningFleet(plan.fleet, say) as fleet:
        measured = Demo(fleet.service(), plan.answer_tokens, say).run(plan.lengths)
        say("stopping the fleet")
    return measured
