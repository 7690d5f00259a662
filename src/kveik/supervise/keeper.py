"""One part's life under a supervisor: started, waited for, restarted, ended. Not safe for threads; never waits."""

import dataclasses
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import EngineStartError
from kveik.pulse import PulseWatch
from kveik.records import Listener, StateRecord, ignore
from kveik.supervise.adopt import KeptRecord
from kveik.supervise.backoff import History, Pauses, Step, next_step
from kveik.supervise.child import Child
from kveik.supervise.last_words import cause, why_ended
from kveik.supervise.messages import ProcessView
from kveik.supervise.part import Part
from kveik.supervise.readiness import ReadinessWatch
from kveik.supervise.states import Happening, State, after
from kveik.telemetry.redaction import redacted

NEVER_S = float("inf")


#: Judges the log and the exit code of an engine that ended before it was ever ready: whether a simpler mode may help,
#: and why it ended.
StartJudge = Callable[[str, int | None], tuple[bool, str]]


def judge_by_last_words(log: str, exit_code: int | None) -> tuple[bool, str]:
    """The judge that knows nothing about engines."""
    return True, why_ended(exit_code, log)


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all keepers of a supervisor share. ``tethered``: its children end with it, whatever happens."""

    pauses: Pauses
    tethered: bool = True
    listener: Listener = ignore
    clock: Clock = SYSTEM_CLOCK
    judge: StartJudge = judge_by_last_words


class Keeper:
    """Keeps one part as it should be: :meth:`tick` looks and acts, orders change what is wanted."""

    def __init__(self, part: Part, around: Surroundings) -> None:
        self.part = part
        self.state = State.WAITING
        self.held = ""
        self._around = around
        self._child: Child | None = None
        self._watch: ReadinessWatch | None = None
        self._pulse: PulseWatch | None = None
        self._then = Happening.GONE_AGAIN
        self._why = ""
        self._since_s = around.clock.wall()
        self._life = _Life(next_start_s=around.clock.monotonic())

    def __repr__(self) -> str:
        return f"Keeper({self.part.name}, {self.state.value}{f': {self._why}' if self._why else ''})"

    @property
    def stays_down(self) -> bool:
        """Whether it is down, and nothing but an order would start it."""
        return self.state in (State.STOPPED, State.FAILED)

    @property
    def ends_for_good(self) -> bool:
        """Whether it is being ended, and will stay down."""
        return self.state is State.STOPPING and self._then is not Happening.GONE_AGAIN

    @property
    def view(self) -> ProcessView:
        """How it is, for others."""
        child = self._child
        return ProcessView(
            name=self.part.name,
            kind=self.part.kind,
            state=self.state.value,
            pid=child.pid if child is not None else 0,
            since_s=self._since_s,
            restarts=self._life.restarts,
            why=self._why,
            log=str(self.part.log),
            url=self.part.url,
            mode=self.part.variants[self._life.variant].mode,
            degraded=self._life.degraded,
            held=self.held,
            digest=self.part.digest,
        )

    @property
    def record(self) -> KeptRecord | None:
        """What the next supervisor must know; None if there is no process."""
        if self._child is None:
            return None
        return KeptRecord(
            name=self.part.name,
            kind=self.part.kind,
            process=self._child.identity,
            digest=self.part.digest,
            log=str(self.part.log),
            ready=self.state is State.READY,
            tethered=self._life.tethered,
            variant=self._life.variant,
            restarts=self._life.restarts,
            since_s=self._since_s,
            degraded=self._life.degraded,
            held=self.held,
        )

    def adopt(self, record: KeptRecord, child: Child) -> None:
        """Go on with what an earlier supervisor started. It was the same part if its digest is the same."""
        self._child, self.held = child, record.held
        same = record.digest == self.part.digest and not record.tethered
        self._life = _Life(
            variant=min(record.variant, len(self.part.variants) - 1) if same else 0,
            restarts=record.restarts,
            degraded=record.degraded if same else "",
            tethered=record.tethered,
            ever_ready=record.ready and same,
            started_s=self._now_s,
        )
        self._go(Happening.STARTED, "an earlier supervisor started it")
        if not same:
            why = "it ends with its supervisor" if record.tethered else "its description changed"
            self._end(why, 0.0 if record.tethered else None)
        elif record.ready:
            child.remember_segments()
            self._go(Happening.ANSWERED, "adopted from an earlier supervisor")
            self._since_s = record.since_s
        else:
            self._await_readiness()

    def tick(self) -> None:
        """Look at the part and do what is due."""
        if self.state is State.WAITING and self._now_s >= self._life.next_start_s:
            self._start()
        elif self.state is State.STARTING:
            self._look_at_start()
        elif self.state is State.READY and self._child is not None:
            self._look_at_work(self._child)
        elif self.state is State.STOPPING:
            self._look_at_end()

    def start(self, why: str = "ordered to start") -> str:
        """Start it if it is down, from its wanted mode on; what that means, for people."""
        if self.state in (State.STARTING, State.READY):
            return f"{self.part.name} runs already"
        self._then = Happening.GONE_AGAIN
        self._life = dataclasses.replace(self._life, next_start_s=self._now_s, endings=0)
        if self.stays_down:
            self._life = dataclasses.replace(self._life, variant=0, degraded="")
        self._go(Happening.ORDERED_UP, why)
        self._since_s = self._around.clock.wall()  # it waited for this order; from now on it is at it
        return f"{self.part.name} is being started"

    def stop(self, grace_s: float | None = None, why: str = "ordered to stop") -> str:
        """End it; it stays down."""
        self._then = Happening.GONE_STAY_DOWN
        if self.state.has_process:
            self._end(why, grace_s)
            return f"{self.part.name} is being stopped"
        self._go(Happening.ORDERED_DOWN, why)
        return f"{self.part.name} is stopped"

    def restart(self, why: str, grace_s: float | None = None, part: Part | None = None) -> str:
        """End it, and start it again at once, perhaps by another description."""
        if part is not None and part.digest != self.part.digest:
            self._life = dataclasses.replace(self._life, variant=0, degraded="", ever_ready=False)
        self.part = part or self.part
        self._life = dataclasses.replace(
            self._life, restarts=self._life.restarts + 1, next_start_s=self._now_s, endings=0
        )
        if self.state.has_process:
            self._then = Happening.GONE_AGAIN
            self._end(why, grace_s)
        else:
            self.start(why)
        return f"{self.part.name} is being restarted: {why}"

    @property
    def _now_s(self) -> float:
        return self._around.clock.monotonic()

    def _start(self) -> None:
        life = self._life
        variant = self.part.variants[life.variant]
        self._life = dataclasses.replace(life, started_s=self._now_s, tethered=self._around.tethered)
        mode = f" in mode {variant.mode}" if variant.mode else ""
        try:
            self.part.log.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._child = Child.start(self.part, variant, os.environ, tethered=self._around.tethered)
        except (EngineStartError, OSError) as error:
            self._go(Happening.STARTED, f"without a process{mode}")
            self._ended(str(error))
            return
        self._go(Happening.STARTED, f"process {self._child.pid}{mode}")
        self._await_readiness()

    def _await_readiness(self) -> None:
        self._watch = ReadinessWatch(self.part.readiness).start()

    def _look_at_start(self) -> None:
        assert self._child is not None
        assert self._watch is not None
        waited_s = self._now_s - self._life.started_s
        if not self._child.running:
            simpler_may_help, why = self._why_it_did_not_start(self._child)
            self._ended(why, simpler_may_help=simpler_may_help)
        elif self._watch.ready.is_set():
            self._life = dataclasses.replace(self._life, ever_ready=True, ready_s=self._now_s)
            self._child.remember_segments()
            self._go(Happening.ANSWERED, f"after {waited_s:.1f} s")
        elif waited_s > self.part.start_s:
            said = cause(self._child.log_text)
            self._ended(f"it was not ready within {self.part.start_s:g} s; its log says: {said or 'nothing'}")

    def _look_at_work(self, child: Child) -> None:
        silent_s = self._pulse.silent_s() if self._pulse is not None else 0.0
        if not child.running:
            self._ended(why_ended(child.exit_code, child.log_text))
        elif silent_s > self.part.hung_s:
            self._ended(f"it hangs: no sign of life for {silent_s:.0f} s")

    def _why_it_did_not_start(self, child: Child) -> tuple[bool, str]:
        if self.part.kind == "engine" and not self._life.ever_ready:
            return self._around.judge(child.log_text, child.exit_code)
        return judge_by_last_words(child.log_text, child.exit_code)

    def _ended(self, why: str, *, simpler_may_help: bool = True) -> None:
        """It ended by itself, or cannot be waited for any longer: what is left of it goes, then it starts again."""
        life = self._life
        calm = life.ready_s > 0 and self._now_s - life.ready_s > self._around.pauses.max_s
        self._life = dataclasses.replace(life, endings=1 if calm else life.endings + 1, ready_s=0.0)
        self._stop_watching()
        if self._child is not None:
            self._child.kill()
        variants = len(self.part.variants) if simpler_may_help else 0
        self._go(Happening.ENDED, f"{why}; {self._decide(why, variants)}")

    def _decide(self, why: str, variants: int) -> str:
        """What follows an ending, for people. ``variants``: how many there are to try."""
        life = self._life
        step = next_step(History(self.part.kind, life.ever_ready, life.variant, variants, life.endings))
        self._then = Happening.GONE_HOPELESS if step is Step.GIVE_UP else Happening.GONE_AGAIN
        if step is Step.GIVE_UP:
            return "it is given up until it is ordered to start"
        if step is Step.WAIT_FOR_ORDER:
            self._life = dataclasses.replace(life, next_start_s=NEVER_S)
            return "it waits for an order"
        if step is Step.NEXT_VARIANT:
            failed, following = (self.part.variants[n].mode for n in (life.variant, life.variant + 1))
            degraded = life.degraded or redacted(f"mode {failed} did not start: {why}")
            self._life = dataclasses.replace(
                life, variant=life.variant + 1, next_start_s=self._now_s, degraded=degraded
            )
            return f"mode {following} is tried"
        pause_s = self._around.pauses.after(life.endings)
        self._life = dataclasses.replace(life, next_start_s=self._now_s + pause_s, restarts=life.restarts + 1)
        return f"it is started again in {pause_s:g} s"

    def _end(self, why: str, grace_s: float | None) -> None:
        """Begin to end it in order, or at once without a grace."""
        self._stop_watching()
        grace_s = self.part.stop_grace_s if grace_s is None else grace_s
        self._life = dataclasses.replace(self._life, kill_at_s=self._now_s + grace_s)
        if self._child is not None:
            if grace_s > 0:
                self._child.terminate()
            else:
                self._child.kill()
        self._go(Happening.ORDERED_DOWN, why)

    def _look_at_end(self) -> None:
        child = self._child
        if child is not None and not child.gone:
            if self._now_s >= self._life.kill_at_s or not child.running:
                child.kill()
            return
        if child is not None:
            child.reap()
        self._child = None
        self._go(self._then, self._why)

    def _stop_watching(self) -> None:
        if self._watch is not None:
            self._watch.stop()
            self._watch = None

    def _go(self, happening: Happening, why: str) -> None:
        before, self.state = self.state, after(self.state, happening)
        self._why = redacted(why)  # it may be a line of a log, and is shown far from here
        if self.state is not before:
            beats = self.state is State.READY and self.part.pulse and self.part.hung_s
            self._pulse = PulseWatch(Path(self.part.pulse), self._around.clock) if beats else None
            self._since_s = self._around.clock.wall()
            self._around.listener(StateRecord(self.part.name, before.value, self.state.value, self._why))


@dataclass(frozen=True, slots=True)
class _Life:
    """What a part has been through. Times are monotonic seconds."""

    next_start_s: float = 0.0
    started_s: float = 0.0
    ready_s: float = 0.0
    kill_at_s: float = 0.0
    variant: int = 0
    endings: int = 0
    restarts: int = 0
    ever_ready: bool = False
    tethered: bool = True
    degraded: str = ""
