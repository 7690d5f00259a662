"""When requests are due. Pure."""

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, groupby

from kveik.bench.planned import Workload


def arrival_times_s(count: int, per_s: float, seed: int) -> list[float]:
    """Random moments (Poisson process), of which the last is at exactly ``count / per_s``.

    ``vllm bench serve --request-rate`` scales its moments the same way, so that the rate is met exactly.
    """
    dice = random.Random(f"arrivals/{seed}")
    moments = list(accumulate(dice.expovariate(1.0) for _ in range(count)))
    factor = count / per_s / moments[-1]
    return [moment * factor for moment in moments]


def at_rate(workload: Workload, per_s: float, seed: int) -> Workload:
    """The same requests at so many a second; of chats, each first request is one arrival."""
    arriving = [number for number, request in enumerate(workload.requests) if request.after < 0]
    due = dict(zip(arriving, arrival_times_s(len(arriving), per_s, seed), strict=True))
    requests = [
        replace(request, due_s=due[number]) if number in due else request
        for number, request in enumerate(workload.requests)
    ]
    return replace(workload, requests=requests, timed=True)


def spread_s(timestamps_ms: Sequence[int], speed: float) -> list[float]:
    """Moments from 0 on, ``speed`` times as fast. Requests of one timestamp are spread evenly until the next one.

    The timestamps of Mooncake's traces are as coarse as three seconds: what came within that time did not come at once.
    """
    moments_ms, _ = spread_ms(timestamps_ms)
    return [moment_ms / 1000 / speed for moment_ms in moments_ms]


def spread_ms(timestamps_ms: Sequence[int], alone_ms: int = 0) -> tuple[list[float], int]:
    """The same moments in milliseconds, and when they are over.

    The last timestamp lasts as long as the one before it, and ``alone_ms`` if there is no other.
    """
    groups = [(stamp, len(list(same))) for stamp, same in groupby(timestamps_ms)]
    starts = [stamp for stamp, _ in groups]
    last_gap = starts[-1] - starts[-2] if len(starts) > 1 else alone_ms
    ends = [*starts[1:], starts[-1] + last_gap]
    moments = [
        stamp - starts[0] + (end - stamp) * number / count
        for (stamp, count), end in zip(groups, ends, strict=True)
        for number in range(count)
    ]
    return moments, ends[-1] - starts[0]
