"""Measures a workload on one service, or on two sides in turn, round by round."""

import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from kveik.bench.answers import Recheck, differences, recheck
from kveik.bench.client_strain import StrainMeter
from kveik.bench.comparison import OFF, ON, Comparison, compare
from kveik.bench.engine_counters import EngineWatch, engines_behind
from kveik.bench.planned import TokenPool, Workload, pool_of
from kveik.bench.run_findings import Finding, Grade
from kveik.bench.sender import Salt, Sender
from kveik.bench.side_run import Sharing, SideRun, side_run
from kveik.engine.client import MAX_TOP_LOGPROBS, CompletionRequest, EngineClient, ServedModel
from kveik.errors import ConfigError, EngineError
from kveik.verify.proof import Say

#: How long engines may take to come to rest before a run, and to have counted everything after it.
REST_S = 30.0
COUNT_S = 20.0
_WARM_UPS = 2
_SAY_S = 3.0
#: Differing answers that are looked at again; each costs a cold request.
RECHECKS_MAX = 8


@dataclass(frozen=True, slots=True)
class Target:
    """A service that is measured. ``engines``: the engines behind it, whose counters are read.

    ``simulated``: whether it or one of them says that it computes nothing.
    """

    client: EngineClient
    model: ServedModel
    engines: Sequence[str]
    simulated: bool = False

    @property
    def url(self) -> str:
        """Its address."""
        return self.client.url


def target(url: str, *, model: str = "", api_key: str = "", engines: Sequence[str] = (), timeout_s: float) -> Target:
    """The service at ``url``; its engines are looked for if they are not given. Raises :class:`EngineError`."""
    client = EngineClient(url, api_key=api_key, read_timeout_s=timeout_s)
    served = client.models()
    found = next((one for one in served if one.name == model), None) if model else served[0]
    if found is None:
        raise ConfigError(
            f"{client.url} does not serve {model}, expected one of {', '.join(one.name for one in served)}"
        )
    behind = engines or engines_behind(client.url, api_key)
    return Target(client, found, behind, found.simulated or any(map(_is_simulated, behind)))


def _is_simulated(engine: str) -> bool:
    """An engine that wants a key which only its router has says nothing; the router's word must do then."""
    try:
        return EngineClient(engine, read_timeout_s=10.0).model().simulated
    except EngineError:
        return False


@dataclass(frozen=True, kw_only=True)
class BenchPlan:
    """What to measure. ``off`` is None where one side alone is measured.

    ``off_by_salt``: the off side is the same service, but each of its requests has a cache salt of its own, so that it
    finds nothing. ``fixed_salt``: of all runs of the on side; then only the first one can be cold. ``salted``: whether
    requests carry salts at all.
    """

    on: Target
    off: Target | None = None
    off_by_salt: bool = False
    rounds: int = 1
    places: int = 0
    fixed_salt: str = ""
    salted: bool = True

    def __post_init__(self) -> None:
        """Raises :class:`ConfigError` for what contradicts itself."""
        if self.off is not None and self.off_by_salt:
            raise ConfigError("the off side is either another address or the same one by salt, not both")
        if not self.salted and (self.off_by_salt or self.fixed_salt):
            raise ConfigError("--no-salt contradicts --compare and --salt, which are made by salts")

    @property
    def sides(self) -> tuple[str, ...]:
        """Those that are measured."""
        return (ON, OFF) if self.off is not None or self.off_by_salt else (ON,)

    def side(self, name: str) -> Target:
        """The service of a side."""
        return self.off if name == OFF and self.off is not None else self.on

    def sharing(self, name: str) -> Sharing:
        """Which requests of a side may share blocks."""
        return Sharing.NONE if name == OFF and self.off_by_salt else Sharing.ALL


def order_of(sides: Sequence[str], rounds: int) -> Iterator[tuple[int, str]]:
    """Rounds and sides in turn; every second round begins with the other side, so that no side is always the first."""
    for number in range(1, rounds + 1):
        yield from ((number, side) for side in (sides if number % 2 else sides[::-1]))


def _other_model(plan: BenchPlan) -> Iterator[Finding]:
    names = [plan.side(side).model.name for side in plan.sides]
    if len(set(names)) > 1:
        text = f"the sides serve {names[0]} and {names[1]}: if these are not one model, nothing can be compared"
        yield Finding("other_model", Grade.NOTE, text)


class Bench:
    """One benchmark. ``make`` makes the workload of a pool of tokens."""

    def __init__(self, plan: BenchPlan, make: Callable[[TokenPool], Workload], seed: int, say: Say) -> None:
        self._plan = plan
        self._make = make
        self._seed = seed
        self._say = say
        self._nonce = secrets.token_hex(6)
        self.workload: Workload

    def run(self) -> Comparison:
        """Measure. Raises :class:`EngineError` where a service cannot be asked, :class:`ConfigError` for its limits."""
        self.workload = self._workload(self._nonce)
        for side in self._plan.sides:
            self._warm_up(side)
        runs: list[SideRun] = []
        beside = list(_other_model(self._plan))
        for number, side in order_of(self._plan.sides, self._plan.rounds):
            try:
                runs.append(self._run(side, number))
            except (EngineError, KeyboardInterrupt) as error:
                if not runs:
                    raise
                # What was measured so far is not thrown away.
                text = f"the benchmark ended before its last round: {str(error) or 'it was interrupted'}"
                beside.append(Finding("ended_early", Grade.VOID, text))
                break
        return compare(runs, self._rechecks(runs), beside)

    def salt_of_run(self, side: str, number: int) -> Salt:
        """What keeps a run's blocks apart from all others: one salt, or one for each request."""
        if not self._plan.salted:
            return lambda request: ""
        if self._plan.fixed_salt and side == ON:
            return lambda request: self._plan.fixed_salt
        base = f"kveik-bench-{self._nonce}-{side}-{number}"
        return (
            (lambda request: f"{base}-{request}")
            if self._plan.sharing(side) is Sharing.NONE
            else (lambda request: base)
        )

    def _workload(self, nonce: str) -> Workload:
        """Without salts the prompts themselves must be new ones in each run."""
        on = self._plan.on
        pool = pool_of(lambda text: on.client.tokenize(text, on.model.name), self._seed)
        workload = self._make(pool if self._plan.salted else pool.renamed(nonce))
        for side in self._plan.sides:
            workload.check_fits(self._plan.side(side).model.max_model_tokens)
        return workload

    def _warm_up(self, side: str) -> None:
        """What an engine does for the first time is no side's fault. These prompts are not of the workload."""
        target = self._plan.side(side)
        longest = max(self.workload.requests, key=lambda request: len(request.prompt))
        for number in range(_WARM_UPS):
            prompt = tuple(reversed(longest.prompt))
            salt = f"kveik-bench-{self._nonce}-{side}-warm-up-{number}" if self._plan.salted else ""
            target.client.complete(CompletionRequest(prompt, longest.answer_tokens, cache_salt=salt), target.model.name)
        self._say(f"{side}: {target.url} answers for {target.model.name}; {len(target.engines)} engines are watched")

    def _run(self, side: str, number: int) -> SideRun:
        plan, target = self._plan, self._plan.side(side)
        workload = self.workload if plan.salted or number == 1 else self._workload(f"{self._nonce}-{number}")
        watch = EngineWatch(target.engines)
        if not watch.rest(REST_S):
            self._say(f"{side}: the engines did not come to rest within {REST_S:g} s")
        told = self._progress(f"round {number} of {plan.rounds}, {side}", len(workload.requests))
        sender = Sender(target.client, target.model.name, workload, self.salt_of_run(side, number), plan.places, told)
        with watch, StrainMeter() as meter:
            outcomes = sender.run()
            strain = meter.strain
            own_tokens = sum(outcome.prompt_tokens for outcome in outcomes)
            counted = watch.counted(own_tokens, COUNT_S)
        return side_run(side, number, workload, outcomes, counted, strain, plan.sharing(side), plan.places)

    def _progress(self, what: str, count: int) -> Callable[[int], None]:
        """Says every few seconds, and at the end, how many requests are over."""
        next_s = time.monotonic() + _SAY_S

        def told(over: int) -> None:
            nonlocal next_s
            if over == count or time.monotonic() >= next_s:
                next_s = time.monotonic() + _SAY_S
                self._say(f"{what}: {over} of {count} requests")

        return told

    def _rechecks(self, runs: Sequence[SideRun]) -> list[Recheck]:
        if not self._plan.salted:
            return []  # without salts nothing can be asked again without a cache
        on, off = ([run for run in runs if run.side == side] for side in (ON, OFF))
        found, _ = differences(on, off)
        target, checked = self._plan.on, []
        for difference in found[:RECHECKS_MAX]:
            salt = f"kveik-bench-{self._nonce}-again-{difference.request}"
            request = CompletionRequest(difference.prompt, difference.answer_tokens, MAX_TOP_LOGPROBS, salt)
            try:
                checked.append(recheck(difference, target.client.complete(request, target.model.name)))
            except EngineError as error:
                self._say(f"request {difference.request} could not be looked at again: {error}")
        return checked
