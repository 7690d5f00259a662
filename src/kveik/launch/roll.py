"""Restart a fleet's engines one after the other so that no request is lost: the plan of :mod:`roll_plan`, carried out.

A step that fails ends the roll; all other engines go on serving. Where a roll is interrupted it puts the engine in
hand back, or finishes it if it was restarted already.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

from kveik.clock import Deadline
from kveik.engine.client import EngineClient, EngineStatusError
from kveik.engine.client import warm_up as first_answer
from kveik.errors import (
    AdmissionError,
    EngineError,
    FleetError,
    KveikError,
    RefusedError,
    RollError,
    SuperviseError,
    UnknownEngineError,
)
from kveik.launch.drain import POLL_S, Pooling, begin_drain, readmit, wait_drained, wait_ready
from kveik.launch.keepers import Keeper
from kveik.launch.pool import Pool, PooledEngine
from kveik.launch.roll_order import ANSWER_S, Interruption, Notebook, Outcome, Prove, Question, RollOptions, Told
from kveik.launch.roll_plan import (
    HOLD_WORD,
    Rolled,
    RollPlan,
    RollState,
    Stage,
    Version,
    advice,
    needs_proof,
    news,
    too_few_without,
    why_not_out,
)
from kveik.watchdog.warm_up import warm_up

T = TypeVar("T")

#: What a router says no with; asking again would not help.
_ANSWERED = (UnknownEngineError, RefusedError, AdmissionError)


class _InterruptedError(Exception):
    """The engine in hand shall be put back."""


@dataclass(frozen=True, slots=True)
class _Before:
    """An engine as it was found: why it was held, and whether somebody had put it out of the pool."""

    held: str = ""
    out: bool = False


class Roll:
    """One roll. ``tell`` hears every step."""

    def __init__(
        self,
        routers: Pooling,
        keepers: Callable[[Rolled], Keeper],
        prove: Prove,
        options: RollOptions,
        notebook: Notebook,
        tell: Callable[[Told], None],
        interruption: Interruption,
    ) -> None:
        self._routers = routers
        self._keeper_of = keepers
        self._prove = prove
        self._options = options
        self._notebook = notebook
        self._tell = tell
        self._interruption = interruption
        self._done: list[str] = []
        self._proved: list[Version] = []
        self._stage = Stage.CHECK

    def run(self, plan: RollPlan) -> Outcome:
        """Roll all engines of the plan, or as many as go well."""
        began_s = time.monotonic()
        self._done, self._proved = list(plan.done), list(plan.proved)
        for number, engine in enumerate(plan.order):
            left = tuple(one.name for one in plan.order[number:])
            if self._interruption.asked:
                return self._outcome(began_s, left, interrupted=True)
            try:
                self._roll(engine, plan)
            except _InterruptedError:
                return self._outcome(began_s, left, interrupted=True)
            except RollError as error:
                told = advice(engine.name, self._stage, str(error), self._done, left[1:])
                return self._outcome(began_s, left, failed=engine.name, stage=self._stage, advice=told)
            self._done.append(engine.name)
            self._remember()
        self._notebook.forget()
        return self._outcome(began_s, ())

    def _outcome(self, began_s: float, left: tuple[str, ...], **more: Any) -> Outcome:
        return Outcome(tuple(self._done), left, seconds=time.monotonic() - began_s, **more)

    def _remember(self, engine: str = "", stage: str = "") -> None:
        options = self._options
        self._notebook.write(
            RollState(
                config=options.config,
                asked=options.asked,
                done=tuple(self._done),
                in_hand=engine,
                stage=stage,
                proved=tuple(self._proved),
            )
        )

    # -- one engine -----------------------------------------------------------------------------

    def _roll(self, engine: Rolled, plan: RollPlan) -> None:
        keeper = self._keeper_of(engine)
        with self._step(engine, Stage.CHECK):
            found = self._check(engine, keeper, named=engine.name in plan.named)
        try:
            self._take_out(engine, keeper, found)
        except (RollError, _InterruptedError):
            self._put_back(engine, keeper, found)
            raise
        changed = self._restart(engine, keeper) or engine.name in plan.suspects
        self._check_version(engine, changed=changed)
        self._let_in(engine, keeper)

    def _check(self, engine: Rolled, keeper: Keeper, *, named: bool) -> _Before:
        held = keeper.held(engine)
        if held and not held.startswith(HOLD_WORD) and not named:
            raise RollError(f"it is held ({held}); readmit it, or name it if it shall be rolled all the same")
        deadline = Deadline.after(self._options.ready_s)
        while why := why_not_out(engine.name, (pool := self._look()), self._options.ready_min):
            if self._interruption.pause(min(POLL_S, deadline.remaining_s)):
                raise _InterruptedError
            if deadline.passed:
                raise RollError(why)
        own = pool.get(engine.name)
        return _Before(held, out=own is not None and own.out)

    def _take_out(self, engine: Rolled, keeper: Keeper, found: _Before) -> None:
        with self._step(engine, Stage.HOLD):
            keeper.hold(engine, f"{HOLD_WORD}: it is being rolled")
        with self._step(engine, Stage.DRAIN) as note:
            if engine.name not in self._look():
                note("it is not in the fleet")
                return
            self._patiently(
                lambda: begin_drain(self._routers, engine.name, f"{HOLD_WORD}: it is drained to be restarted")
            )
            drained = wait_drained(
                self._routers,
                engine.name,
                self._options.drain_s,
                pause=self._interruption.pause,
                told=lambda left: note(f"{left} requests left"),
            )
            if drained.stopped or self._interruption.asked:
                raise _InterruptedError
            if drained.left:
                note(f"{drained.left} requests are left after {self._options.drain_s:g} s: they end with the engine")
            too_few = too_few_without(engine.name, self._look(), self._options.ready_min)
            if too_few and not found.out:  # one of the others was lost meanwhile
                raise RollError(too_few)

    def _put_back(self, engine: Rolled, keeper: Keeper, found: _Before) -> None:
        """As it was: nothing has been done to its process."""
        try:
            if not found.out:
                readmit(self._routers, engine.name, f"{HOLD_WORD}: given up")
            if not found.held:
                keeper.release(engine)
        except KveikError as error:
            self._tell(Told(engine.name, self._stage, "note", f"it could not be put back: {error}"))

    def _restart(self, engine: Rolled, keeper: Keeper) -> bool:
        """Whether it is described otherwise than before."""
        with self._step(engine, Stage.ISOLATE):
            self._isolate(engine)
        with self._step(engine, Stage.RESTART):
            before = keeper.digest(engine)
            keeper.restart(engine, HOLD_WORD)
        with self._step(engine, Stage.ANSWER):
            self._wait_answer(engine, keeper)
        return keeper.digest(engine) != before

    def _isolate(self, engine: Rolled) -> None:
        """An engine that has left the fleet by itself is isolated as soon as it is announced again."""
        if engine.name in self._look():
            self._patiently(lambda: self._routers.hold(engine.name, "isolate", f"{HOLD_WORD}: it is being restarted"))

    def _wait_answer(self, engine: Rolled, keeper: Keeper) -> None:
        client = self._options.client(engine.url)
        deadline = Deadline.after(engine.start_s)
        why = ""
        while True:
            try:
                if keeper.serves(engine):
                    first_answer(client, client.model().name)
                    return
                why = "its process is not ready"
            except (EngineError, SuperviseError) as error:
                why = str(error)
            if deadline.passed:
                raise RollError(f"no answer within {engine.start_s:g} s: {why}")
            time.sleep(POLL_S)

    def _check_version(self, engine: Rolled, *, changed: bool) -> None:
        """Prove the first engine of a new version."""
        with self._step(engine, Stage.VERIFY) as note:
            self._isolate(engine)
            now = _version(self._options.client(engine.url), engine.settings)
            others = _alike(engine.name, self._look())
            versions = {name: _version(self._options.client(other.url)) for name, other in others.items()}
            was = Version(settings="" if changed else now.settings)
            found = news(was, now, versions)
            if not needs_proof(now, found, self._proved):
                note("this version is proved already" if found else "it is no new version")
                return
            note(f"the first of a new version: {'; '.join(found)}")
            proof = self._prove(self._question(engine, _partner(now, others, versions), note))
            if not proof.holds:
                raise RollError(proof.told)
            note(proof.told)
            self._proved.append(now)

    def _question(self, engine: Rolled, other: str, note: Callable[[str], None]) -> Question:
        keeper = self._keeper_of(engine)

        def restart() -> None:
            keeper.restart(engine, f"{HOLD_WORD}: once more, for the proof")
            self._wait_answer(engine, keeper)

        return Question(engine.url, other, restart, note)

    def _let_in(self, engine: Rolled, keeper: Keeper) -> None:
        with self._step(engine, Stage.WARM_UP):
            warmed = warm_up(engine.url, deadline_s=engine.start_s, api_key=self._options.api_key)
            if warmed.trouble:
                raise RollError(warmed.trouble)
        with self._step(engine, Stage.READMIT):
            self._patiently(lambda: readmit(self._routers, engine.name, f"{HOLD_WORD}: restarted"))
            keeper.release(engine)
            self._wait_ready(engine)

    def _look(self) -> Pool:
        return self._patiently(self._routers.look)

    def _patiently(self, ask: Callable[[], T]) -> T:
        """Ask the routers, again while one does not answer: it may be busy or restart."""
        deadline = Deadline.after(self._options.ready_s)
        while True:
            try:
                return ask()
            except FleetError as error:
                if deadline.passed or isinstance(error, _ANSWERED):
                    raise
            time.sleep(POLL_S)

    def _wait_ready(self, engine: Rolled) -> None:
        ready, why = wait_ready(self._routers, engine.name, self._options.ready_s, pause=_sleep)
        if not ready:
            raise RollError(f"{why}, {self._options.ready_s:g} s after it was readmitted")

    @contextmanager
    def _step(self, engine: Rolled, stage: Stage) -> Iterator[Callable[[str], None]]:
        """One step: told, remembered and timed. What goes wrong becomes a :class:`RollError`."""
        self._stage = stage
        self._remember(engine.name, stage.value)
        began_s = time.monotonic()

        def tell(state: str, told: str = "") -> None:
            self._tell(Told(engine.name, stage, state, told, time.monotonic() - began_s))

        tell("began")
        try:
            yield lambda told: tell("note", told)
        except KveikError as error:
            tell("failed", str(error))
            raise error if isinstance(error, RollError) else RollError(str(error)) from error
        tell("done")


def _sleep(seconds: float) -> bool:
    time.sleep(seconds)
    return False


def _version(client: EngineClient, settings: str = "") -> Version:
    """What an engine is now. Raises :class:`EngineError` for one that does not tell."""
    return Version(client.version(), _namespace(client), settings)


def _namespace(client: EngineClient) -> str:
    """The engine's KV namespace, which it tells some time after its first request; empty if it has none."""
    deadline = Deadline.after(ANSWER_S)
    while True:
        try:
            metrics = client.metrics()
        except EngineStatusError:  # it has no metrics
            return ""
        if metrics.namespace or not metrics.has_connector or deadline.passed:
            return metrics.namespace
        first_answer(client, client.model().name)
        time.sleep(POLL_S)


def _alike(name: str, pool: Pool) -> dict[str, PooledEngine]:
    """The other engines in the pool that serve what this one serves; all, where it is not known."""
    own = pool.get(name)
    models = set(own.models) if own is not None else set()
    others = {other.name: other for other in pool.values() if other.name != name and other.takes}
    return {key: other for key, other in others.items() if not models or models & set(other.models)}


def _partner(now: Version, others: Mapping[str, PooledEngine], versions: Mapping[str, Version]) -> str:
    """The address of the engine to prove against: one that shares its namespace, if there is one."""
    names = sorted(versions, key=lambda name: versions[name].namespace != now.namespace)
    return others[names[0]].url if names else ""
