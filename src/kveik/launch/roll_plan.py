"""What a roll does, decided purely: which engines in which order, when one may be taken out, what has to be proved.

Each engine goes through :class:`Stage`, in that order; what fails before RESTART is undone, what fails from there on
leaves the engine out of the pool, and the roll ends.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum

import msgspec

from kveik.errors import ConfigError
from kveik.launch.pool import Pool, PooledEngine

_UNPROVED = ("restart", "answer", "verify")

#: Holds at the supervisor and at the router that a roll sets begin with this.
HOLD_WORD = "roll"


class Stage(Enum):
    """The steps of one engine. The values are shown to people."""

    CHECK = "check"  # enough others get requests
    HOLD = "hold"  # the watchdog keeps its hands off
    DRAIN = "drain"  # no new requests; those under way go on until the limit
    ISOLATE = "isolate"  # whatever the new process says of itself, it gets no requests
    RESTART = "restart"
    ANSWER = "answer"  # a real inference
    VERIFY = "verify"  # the first engine of a new version: its cache hits give what cold runs give
    WARM_UP = "warm up"
    READMIT = "readmit"  # the watchdog looks after it again, and all routers send it requests

    @property
    def undone(self) -> bool:
        """Whether an engine that fails here is put back as it was."""
        return self in (Stage.CHECK, Stage.HOLD, Stage.DRAIN)


@dataclass(frozen=True, slots=True)
class Rolled:
    """One engine that can be rolled.

    ``parts``: what its supervisor restarts, its own process first and then ranks of its group; ``command``: what
    restarts an engine that has no supervisor. ``settings``: digest of what the configuration says of it. ``start_s``:
    longest start in seconds.
    """

    name: str
    url: str
    parts: tuple[str, ...] = ()
    command: tuple[str, ...] = ()
    settings: str = ""
    start_s: float = 1800.0


class Version(msgspec.Struct, frozen=True):
    """What makes an engine another one than before: vLLM's version, its KV namespace, its configuration's digest."""

    vllm: str = ""
    namespace: str = ""
    settings: str = ""


class RollState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far a roll came, for the next one. ``config``: digest of the file; ``asked``: engines that were named."""

    config: str
    asked: tuple[str, ...] = ()
    done: tuple[str, ...] = ()
    in_hand: str = ""
    stage: str = ""
    proved: tuple[Version, ...] = ()


@dataclass(frozen=True, slots=True)
class RollPlan:
    """The engines in the order in which they are rolled, and those that an unfinished roll has done already.

    ``named``: those that a person named; ``proved``: versions that need no proof any more; ``suspects``: engines that
    an earlier roll restarted without having proved them. ``notes``: for people.
    """

    order: tuple[Rolled, ...]
    done: tuple[str, ...] = ()
    named: frozenset[str] = frozenset()
    proved: tuple[Version, ...] = ()
    suspects: frozenset[str] = frozenset()
    notes: tuple[str, ...] = ()


def plan_roll(engines: Sequence[Rolled], asked: Sequence[str], config: str, before: RollState | None) -> RollPlan:
    """What is to be done, after what an earlier roll left. Raises :class:`ConfigError` for an unknown name.

    A roll that was not finished goes on if the same is wanted of the same configuration. What it had in hand comes
    first in any case, since it is perhaps out of the pool.
    """
    by_name = {engine.name: engine for engine in engines}
    for name in asked:
        if name not in by_name:
            raise ConfigError(f"no engine {name!r} to roll here, expected one of {', '.join(by_name) or 'none'}")
    wanted = list(dict.fromkeys(asked or by_name))
    done: tuple[str, ...] = ()
    proved: tuple[Version, ...] = ()
    suspects: frozenset[str] = frozenset()
    notes = []
    if before is not None:
        if before.config == config and before.asked == tuple(asked):
            done, proved = tuple(name for name in before.done if name in wanted), before.proved
            if done:
                notes.append(f"an earlier roll has done {', '.join(done)}; it goes on from there")
        elif before.done:
            notes.append("an earlier roll was not finished, but something else is wanted now: it begins anew")
        if before.in_hand in by_name and before.in_hand not in done:
            notes.append(f"an earlier roll had {before.in_hand} in hand ({before.stage}), so it comes first")
            wanted = [before.in_hand, *(name for name in wanted if name != before.in_hand)]
            suspects = frozenset({before.in_hand} if before.stage in _UNPROVED else ())
    return RollPlan(
        order=tuple(by_name[name] for name in wanted if name not in done),
        done=done,
        named=frozenset(asked),
        proved=proved,
        suspects=suspects,
        notes=tuple(notes),
    )


def why_not_out(name: str, pool: Pool, ready_min: int) -> str:
    """Why an engine may not be taken out of the pool now; empty if it may.

    One that gets no requests anyway takes nothing from the pool.
    """
    own = pool.get(name)
    return too_few_without(name, pool, ready_min) if own is not None and own.takes else ""


def too_few_without(name: str, pool: Pool, ready_min: int) -> str:
    """Why the others are too few, in words; empty if they are enough."""
    others = [engine for engine in pool.values() if engine.name != name and engine.takes]
    if len(others) >= ready_min:
        return ""
    away = [shown(engine) for engine in pool.values() if engine.name != name and not engine.takes]
    return (
        f"without {name}, {len(others)} engines would get requests, expected at least {ready_min} (fleet.ready_min)"
        + (f"; {', '.join(away)}" if away else "")
    )


def shown(engine: PooledEngine) -> str:
    """An engine that gets no requests, and why."""
    state = "out after failures" if engine.state == "ready" else engine.state
    return f"{engine.name} is {state}{f' ({engine.why})' if engine.why else ''}"


def news(before: Version, after: Version, others: Mapping[str, Version]) -> tuple[str, ...]:
    """In what an engine that was restarted differs from what it was or from the others, in words; empty: in nothing.

    What an engine does not tell is no difference.
    """
    found = []
    if after.settings != before.settings:
        found.append("its configuration is another")
    for field, word in (("vllm", "vLLM"), ("namespace", "KV namespace")):
        value = getattr(after, field)
        known = {name: getattr(other, field) for name, other in others.items() if getattr(other, field)}
        differing = sorted(name for name, other in known.items() if other != value)
        if value and differing:
            shorter = value if field == "vllm" else value[:12]
            found.append(f"its {word} is {shorter}, other than at {', '.join(differing)}")
    return tuple(found)


def needs_proof(after: Version, found: Sequence[str], proved: Iterable[Version]) -> bool:
    """Whether the engine is the first of a new version."""
    return bool(found) and after not in tuple(proved)


def advice(engine: str, stage: Stage, why: str, done: Sequence[str], rest: Sequence[str]) -> tuple[str, ...]:
    """What state things are in after a step failed, and how to go back or on; one sentence each."""
    told = [f"{engine}: the step '{stage.value}' failed: {why}"]
    if stage.undone:
        told.append(f"{engine} is as it was before")
    else:
        told.append(f"{engine} gets no requests, and the watchdog keeps its hands off it")
    if done:
        told.append(f"already rolled, and serving: {', '.join(done)}")
    if rest:
        told.append(f"not touched: {', '.join(rest)}")
    told.append("to go on, when the cause is mended: kveik roll, as before")
    if not stage.undone:
        told.append(
            f"to go back: restore the configuration and software of before, then kveik roll {' '.join([engine, *done])}"
        )
        told.append(f"to let it serve as it is: kveik readmit {engine}")
    return tuple(told)


#: What each step does, for ``--dry-run``.
IN_WORDS: Mapping[Stage, str] = {
    Stage.CHECK: "at least {ready_min} other engines must get requests",
    Stage.HOLD: "ask the supervisor to have the watchdog keep its hands off",
    Stage.DRAIN: "no new requests; wait up to {drain_s:g} s for those under way",
    Stage.ISOLATE: "isolate it at the router until it has proved itself",
    Stage.RESTART: "restart it by {by}",
    Stage.ANSWER: "wait up to {start_s:g} s for a real inference",
    Stage.VERIFY: "if it is the first of a new version: prove its cache hits, else nothing more is touched",
    Stage.WARM_UP: "warm it up",
    Stage.READMIT: "readmit it, give it back to the watchdog, and wait until all routers send it requests",
}


def in_words(plan: RollPlan, *, ready_min: int, drain_s: float) -> list[str]:
    """The plan for people, a line a step."""
    lines = [f"note: {note}" for note in plan.notes]
    for engine in plan.order:
        lines.append(f"{engine.name} at {engine.url}")
        by = " ".join(engine.command) if engine.command else "its supervisor, with what the configuration says now"
        given = {"ready_min": ready_min, "drain_s": drain_s, "by": by, "start_s": engine.start_s}
        for stage in Stage:
            if engine.command and stage is Stage.HOLD:
                continue
            lines.append(f"  {stage.value + ':':<9} {IN_WORDS[stage].format(**given)}")
    return lines or ["nothing to roll"]
