"""The check ``counters``: whether what an engine says of its hits agrees with the time that it takes.

A long prompt is sent twice under a salt of its own, so the first answer is cold for certain and nobody else's blocks
are touched; then the same with another salt, unless that was clear. What usage and counters tell of the second of each
pair must show in its time to the first token, and the other way round. A very short prompt tells what an answer takes
in any case.
"""

import secrets
import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_view import Fleet, SeenEngine, together
from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.metrics import Metric, MetricsSnapshot
from kveik.errors import EngineError

#: Longest prompt, and room left for the answer; pairs; and how long one answer may take.
_TOKENS_MAX, _ROOM, _PAIRS, _ANSWER_S = 2048, 16, 2, 20.0
#: A prompt shorter than so many blocks says nothing of hits.
_BLOCKS_MIN = 3
#: Computing must take so long beyond a tiny answer, absolutely and relatively, before times say anything.
_VISIBLE_S, _VISIBLE_SHARE = 0.03, 0.5
#: Where computing takes longer than this, one pair will do.
_CLEAR_S = 0.3
#: A hit of more than half saves at least so much of the computing; without one, no more than so much is saved.
_SAVED_LEAST, _SAVED_MOST = 0.2, 0.7
#: More than so much of a prompt, done for others in all that time, disturbs. Probes of a watchdog are less.
_FOREIGN_SHARE = 0.25
_REMEDY = "look at one prompt with `kveik probe cache`; until it is clear, believe times and not counters"


@dataclass(frozen=True, slots=True)
class Timed:
    """One engine's answers. Times to the first token, in seconds; tokens that usage called cached, for each pair.

    ``base_s``: of a very short prompt. ``counted``: tokens that its counters called hits meanwhile, ``cold_hits`` those
    that usage told of the first of a pair. ``foreign_tokens``: of others' prompts and answers meanwhile. ``trouble``:
    why nothing could be measured.
    """

    engine: str
    prompt_tokens: int = 0
    base_s: float = 0.0
    cold_s: tuple[float, ...] = ()
    warm_s: tuple[float, ...] = ()
    told: tuple[int, ...] = ()
    cold_hits: int = 0
    counted: int | None = None
    foreign_tokens: int = 0
    hit_unit: int = 0
    trouble: str = ""


def check_counters(context: Context) -> Verdict:
    """Measure all engines at once. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    fleet = fleet_of(context)
    timed = together(partial(_measure, fleet=fleet), fleet.view().answering)
    evidence = [
        f"{one.engine}: {one.prompt_tokens} tokens in {_least(one.cold_s):.3f} s, again in {_least(one.warm_s):.3f} s"
        for one in timed
        if one.cold_s and one.warm_s
    ]
    points = [point for one in timed for point in judge_times(one)]
    return Verdict(evidence, points or [Point(Outcome.UNKNOWN, "engines", "none answers, so nothing can be measured")])


def judge_times(one: Timed) -> Iterator[Point]:
    """What is to be said of one engine."""
    if one.trouble or not one.told:
        yield Point(Outcome.UNKNOWN, one.engine, one.trouble or "it does not tell how many tokens were cached")
        return
    if one.cold_hits:
        told = f"it counts {one.cold_hits} tokens of a prompt that nobody ever sent as hits"
        yield Point(Outcome.WRONG, one.engine, told, _REMEDY, "usage of its answers")
    told_tokens = min(one.told)
    if one.counted is not None and one.counted < sum(one.told):
        text = f"usage told of {sum(one.told)} cached tokens, its counters of {one.counted}"
        yield Point(Outcome.WRONG, one.engine, text, _REMEDY, "vllm:prefix_cache_hits and external_prefix_cache_hits")
    yield _times(one, told_tokens)


def _times(one: Timed, told: int) -> Point:
    cold_s, warm_s = _least(one.cold_s), _least(one.warm_s)
    computing_s = cold_s - one.base_s
    saved = (cold_s - warm_s) / computing_s if computing_s > 0 else 0.0
    times = f"{cold_s:.3f} s cold, {warm_s:.3f} s again, {one.base_s:.3f} s for a tiny prompt"
    hit = told >= one.prompt_tokens // 2
    if hit and computing_s < max(_VISIBLE_S, _VISIBLE_SHARE * one.base_s):
        text = f"{told} of {one.prompt_tokens} tokens were hits; the prompt is too short here for times to show it"
        return Point(Outcome.UNKNOWN, one.engine, text, source=times)
    if one.foreign_tokens > one.prompt_tokens * _FOREIGN_SHARE:
        text = f"it worked on {one.foreign_tokens} tokens of others meanwhile, so times say nothing"
        return Point(Outcome.UNKNOWN, one.engine, text, "ask again when it is quiet")
    if hit and saved < _SAVED_LEAST:
        text = f"{told} of {one.prompt_tokens} tokens are told as hits, and the answer is not faster ({times})"
        return Point(Outcome.WRONG, one.engine, text, _REMEDY)
    if hit:
        return Point(Outcome.WELL, one.engine, f"{told} tokens were hits, and saved {saved:.0%} of the computing")
    if saved > _SAVED_MOST and computing_s > _VISIBLE_S:
        text = f"only {told} of {one.prompt_tokens} tokens are told as hits, and the answer is much faster ({times})"
        return Point(Outcome.WRONG, one.engine, text, _REMEDY)
    unit = f"; its unit of hits is {one.hit_unit} tokens" if one.hit_unit > one.prompt_tokens // 2 else ""
    text = f"the same prompt sent twice hit {told} of {one.prompt_tokens} tokens{unit}"
    if unit:
        return Point(Outcome.UNKNOWN, one.engine, text, "ask with longer prompts: kveik probe cache")
    return Point(Outcome.WRONG, one.engine, text, "kveik doctor prefix-caching connector; kveik probe cache")


def _least(times: Sequence[float]) -> float:
    """The least disturbed one."""
    return min(times, default=0.0)


def _measure(engine: SeenEngine, fleet: Fleet) -> Timed:
    if engine.no_token:
        return Timed(engine.name, trouble="it makes no token")
    tokens = min(_TOKENS_MAX, (engine.max_model_tokens or _TOKENS_MAX) - _ROOM)
    block = engine.metrics.block_tokens if engine.metrics else 0
    if tokens < _BLOCKS_MIN * max(block, 1):
        return Timed(engine.name, trouble=f"prompts of {tokens} tokens are too short for blocks of {block}")
    try:
        return _pairs(engine, fleet.client(engine.described, _ANSWER_S), tokens)
    except EngineError as error:
        return Timed(engine.name, trouble=str(error))


def _pairs(engine: SeenEngine, client: EngineClient, tokens: int) -> Timed:
    prompt = tuple(5 + (number * 7) % 97 for number in range(tokens))
    base = [client.complete(CompletionRequest((1, 2, 3), 1), engine.model).ttft_s for _ in range(_PAIRS + 1)]
    before = _metrics(client)
    cold_s, warm_s, told, cold_hits = [], [], [], 0
    for _ in range(_PAIRS):
        request = CompletionRequest(prompt, 1, cache_salt=f"kveik-doctor-{secrets.token_hex(8)}")
        first, second = (client.complete(request, engine.model) for _ in range(2))
        cold_s.append(first.ttft_s)
        warm_s.append(second.ttft_s)
        told.append(second.cached_tokens)
        cold_hits = max(cold_hits, first.cached_tokens)
        if _is_clear(first.ttft_s, second.ttft_s, statistics.median(base)):
            break
    after = _metrics(client)
    return Timed(
        engine.name,
        prompt_tokens=tokens,
        base_s=statistics.median(base),
        cold_s=tuple(cold_s),
        warm_s=tuple(warm_s),
        told=tuple(told) if min(told) >= 0 else (),
        cold_hits=cold_hits,
        counted=_counted(before, after),
        foreign_tokens=_foreign(before, after, ours=2 * len(cold_s) * (tokens + 1)),
        hit_unit=_unit(after),
    )  # fmt: skip


def _is_clear(cold_s: float, warm_s: float, base_s: float) -> bool:
    """Whether one pair says enough: computing takes long here, and most of it was saved."""
    return cold_s - base_s > _CLEAR_S and warm_s - base_s < (cold_s - base_s) / 2


def _metrics(client: EngineClient) -> MetricsSnapshot | None:
    try:
        return client.metrics()
    except EngineError:
        return None


def _counted(before: MetricsSnapshot | None, after: MetricsSnapshot | None) -> int | None:
    """Tokens that its counters called hits between two readings; None if it has no such counters."""
    if before is None or after is None or not after.has(Metric.LOCAL_HITS):
        return None
    hits = (Metric.LOCAL_HITS, Metric.EXTERNAL_HITS)
    return round(sum(after.total(metric) - before.total(metric) for metric in hits))


def _foreign(before: MetricsSnapshot | None, after: MetricsSnapshot | None, ours: int) -> int:
    """Tokens of prompts and answers between two readings that are not ours."""
    if before is None or after is None:
        return 0
    done = (Metric.PROMPT_TOKENS, Metric.OUTPUT_TOKENS)
    return max(0, round(sum(after.total(metric) - before.total(metric) for metric in done)) - ours)


def _unit(metrics: MetricsSnapshot | None) -> int:
    """In which steps the engine's own cache hits, in tokens; 0 if it does not say."""
    text = metrics.label(Metric.CACHE_CONFIG, "cache_hit_alignment_tokens") if metrics else ""
    return int(text) if text.isascii() and text.isdigit() else 0
