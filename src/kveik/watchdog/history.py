"""What a history of looks at an engine shows: which probes ended how, since when nothing moves, who computes.

Pure: all times are those of the samples. The newest sample is the last one, and its time is now.
"""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from itertools import takewhile

from kveik.watchdog.verdict import Counters, Probed, RankCounters, Sample

#: Less than this share of one processor is no computing: an idle engine's threads wake up now and then.
COMPUTING_SHARE = 0.05
#: What a process must get at least that waits for a processor half of the time, to count as working.
STARVED_SHARE = 0.01


@dataclass(frozen=True, slots=True)
class Outcome:
    """One probe that ended."""

    at_s: float
    probed: Probed
    detail: str


def outcomes(history: Sequence[Sample], most: int) -> list[Outcome]:
    """The last probes that ended, at most ``most``, each once, oldest first; when it was first seen to have ended."""
    found: dict[int, Outcome] = {}
    for sample in reversed(history):
        if sample.probe is None:
            continue
        if sample.number not in found and len(found) == most:
            break
        found[sample.number] = Outcome(sample.at_s, sample.probe, sample.detail)
    return list(reversed(found.values()))


def since_gap(history: Sequence[Sample], longest_s: float) -> Sequence[Sample]:
    """The samples since looks were last further apart than that: the machine slept, or we were stopped ourselves."""
    for index in range(len(history) - 1, 0, -1):
        if history[index].at_s - history[index - 1].at_s > longest_s:
            return history[index:]
    return history


def last_right_s(history: Sequence[Sample]) -> float | None:
    """When the last right answer was seen; None if there was none."""
    numbers = ((sample.number, sample.at_s) for sample in reversed(history) if sample.probe is Probed.RIGHT)
    number, at_s = next(numbers, (0, None))
    for other, earlier_s in numbers:
        if other != number:
            break
        at_s = earlier_s
    return at_s


def since_change_s(history: Sequence[Sample], value: Callable[[Sample], Hashable | None]) -> float:
    """For how long ``value`` has been what it is; samples in which it is None say nothing.

    Where it never changed, or is never known: since the first sample.
    """
    now_s, newest, changed_at_s = history[-1].at_s, None, history[0].at_s
    for index in range(len(history) - 1, -1, -1):
        found = value(history[index])
        if found is None:
            continue
        if newest is None:
            newest = found
        elif found != newest:
            break
        changed_at_s = history[index].at_s
    else:
        changed_at_s = history[0].at_s
    return now_s - changed_at_s


def tokens_of(sample: Sample) -> Hashable | None:
    """What grows with each token."""
    counters = sample.counters
    return None if counters is None else (counters.prompt_tokens, counters.output_tokens)


def steps_of(sample: Sample) -> Hashable | None:
    """What grows with each step of the engine, be it with a token or not (part of a long prompt, a fruitless look)."""
    return None if sample.counters is None else sample.counters.iterations


def newest_counters(history: Sequence[Sample]) -> Counters | None:
    """The last counters that were read."""
    return next((sample.counters for sample in reversed(history) if sample.counters is not None), None)


def rank_counters(sample: Sample, rank: str) -> RankCounters | None:
    """One rank's counters in a sample."""
    return None if sample.counters is None else sample.counters.per_rank.get(rank)


def processors_of(sample: Sample) -> tuple[float, float] | None:
    """Seconds that all processors together worked, and were waited for."""
    processes = sample.processes
    return None if processes is None else (processes.processor_s, processes.starved_s)


def rank_processors(sample: Sample, rank: str) -> tuple[float, float] | None:
    """The same of one rank; None where it cannot be told from others'."""
    worked = None if sample.processes is None else sample.processes.per_rank_s.get(rank)
    return None if worked is None else (worked, 0.0)


def computing(
    history: Sequence[Sample],
    window_s: float,
    seconds: Callable[[Sample], tuple[float, float] | None] = processors_of,
) -> bool | None:
    """Whether processors worked in the last ``window_s``; None where processes cannot be seen.

    A process that gets next to no processor, because others have them, works, too. As long as less than half of
    the window was seen, it is taken that they did: nobody is condemned unseen.
    """
    begins_s = history[-1].at_s - window_s
    recent = takewhile(lambda sample: sample.at_s >= begins_s, reversed(history))
    seen = [(sample.at_s, *used) for sample in recent if (used := seconds(sample)) is not None]
    if not seen:
        return None
    passed_s, worked_s, starved_s = (after - before for after, before in zip(seen[0], seen[-1], strict=True))
    if passed_s < window_s / 2 or worked_s >= COMPUTING_SHARE * passed_s:
        return True
    return worked_s >= STARVED_SHARE * passed_s and worked_s + starved_s >= passed_s / 2
