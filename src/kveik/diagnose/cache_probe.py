"""A controlled probe of the cache: fill, push out, ask again, and see what each step counted.

::

    cold        a long prompt that nobody sent before            the engine computes it, and what it has is stored
    own cache   the same again                                   the reference of what a hit of this engine gives
    push out    unrelated prompts until the engine's own KV      (with two engines: nothing, the second has never
                cache was turned over                            seen the prompt)
    again       the first prompt                                 it comes from the shared cache, or is computed

Every prompt is new and has a ``cache_salt`` of its own, so a cold run is cold, nobody else ever hits what the probe
left in the caches, and it leaves them as other blocks do. Nothing is judged here.
"""

import math
import secrets
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from kveik.clock import Deadline
from kveik.diagnose.cache_counters import Counts, connector_of, counts_between, joined
from kveik.diagnose.cache_log import read_evidence
from kveik.diagnose.cache_probe_verdict import Observed, Result, answer_of, judge
from kveik.doctor.log_file import GrowingLog
from kveik.engine.client import (
    MAX_TOP_LOGPROBS,
    Completion,
    CompletionRequest,
    EngineClient,
    EngineStatusError,
)
from kveik.engine.metrics import Metric, MetricsSnapshot
from kveik.errors import ProbeError
from kveik.verify.prompts import build_prompt
from kveik.verify.trial import EngineFacts, TrialOptions, read_facts

Say = Callable[[str], None]

TRAFFIC, RESET = "traffic", "reset"
#: Unless a length is given: long enough to be worth loading, and so many units of a hit.
PROMPT_TOKENS, PROMPT_UNITS = 4096, 4
#: The engine's own cache is turned over so often before it is given up.
PUSHES_MAX = 3
POLL_S = 0.05
#: Counters that stood still for so long will not move any more; longer where less was stored than could be.
QUIET_S, QUIET_UNSURE_S = 0.5, 2.0
#: Longest wait for what an engine tells without computing.
LOOK_S = 30.0
#: How long counters may take to come to rest.
SETTLE_S = 20.0
#: Between two engines a stored block may take a while to come where both look. Each try is with a prompt of its own.
ACROSS_WAITS_S = (0.5, 3.0, 10.0)


@dataclass(frozen=True, kw_only=True)
class ProbePlan:
    """What to do. Zeros and empty values mean: find out, or choose. ``limit_s`` bounds all of it."""

    prompt_tokens: int = 0
    answer_tokens: int = 16
    dtype: str = ""
    block_tokens: int = 0
    push_out: str = TRAFFIC
    limit_s: float = 600.0
    across_waits_s: Sequence[float] = ACROSS_WAITS_S


@dataclass(frozen=True)
class Target:
    """One engine under the probe.

    ``pages``: where else something counts for it, such as a store's server. ``rank``: the data-parallel rank that is
    asked, each of which has a cache of its own; empty where there is one.
    """

    name: str
    url: str
    api_key: str = ""
    pages: Sequence[str] = ()
    rank: str = ""

    def client(self, request_id: str = "", timeout_s: float = LOOK_S) -> EngineClient:
        """A client whose requests have this id."""
        headers = {"X-Request-Id": request_id} if request_id else {}
        if self.rank:
            headers["X-data-parallel-rank"] = self.rank
        return EngineClient(self.url, read_timeout_s=timeout_s, api_key=self.api_key, headers=headers)

    def read(self) -> MetricsSnapshot:
        """All that counts for it, now."""
        return joined(
            [self.client().metrics(), *(EngineClient(page, read_timeout_s=LOOK_S).metrics() for page in self.pages)]
        )


@dataclass(frozen=True, slots=True)
class Step:
    """One request of the probe and what was counted meanwhile."""

    name: str
    engine: str
    request_id: str
    completion: Completion
    counts: Counts
    lines: Sequence[str] = ()


@dataclass(kw_only=True)
class Course:
    """What a probe did, for people."""

    model: str = ""
    prompt_tokens: int = 0
    dtype: str = ""
    cache_tokens: int = 0
    pushed_prompts: int = 0
    steps: list[Step] = field(default_factory=list)
    log_lines: list[str] = field(default_factory=list)


class CacheProbe:
    """One probe: ``writer`` is filled, ``reader`` asked again; they may be the same engine.

    ``logs`` are read from where they end now.
    """

    def __init__(
        self, plan: ProbePlan, writer: Target, reader: Target, say: Say, *, logs: Sequence[GrowingLog] = ()
    ) -> None:
        self._plan = plan
        self._writer, self._reader = writer, reader
        self._across = writer.url != reader.url
        self._say = say
        self._logs = logs
        self._deadline = Deadline.after(plan.limit_s)
        self._salt = f"kveik-probe-{secrets.token_hex(8)}"
        self._top_logprobs = MAX_TOP_LOGPROBS
        self._prompts = 0
        self.course = Course()

    def run(self) -> Observed:
        """All steps.

        Raises :class:`~kveik.errors.ProbeError`, VerifyError and EngineError where it cannot be carried out.
        """
        for log in self._logs:
            for _ in log.news():  # what is there already may be gigabytes
                pass
        self._writer, self._reader = _of_one_rank(self._writer), _of_one_rank(self._reader)
        facts = self._look()
        ids = self._text(facts)
        self._warm_up(ids)
        if not self._across:
            return self._once(ids, facts, 0.0)
        for number, wait_s in enumerate(self._plan.across_waits_s):
            seen = self._once(_turned(ids, number), facts, wait_s)
            if judge(seen).result is not Result.NOT_FOUND or len(set(seen.namespaces)) > 1:
                break
        return seen

    # -- before ---------------------------------------------------------------------------------

    def _look(self) -> EngineFacts:
        """What the engine is. Raises ProbeError for what is no engine, or two of different models."""
        options = TrialOptions(dtype=self._plan.dtype, block_tokens=self._plan.block_tokens)
        for target in self._targets():
            if not target.read().has(Metric.PROMPT_TOKENS):
                raise ProbeError(
                    f"{target.url} counts no prompt tokens, as vLLM does: is it an engine? Engines behind a router are "
                    "found with --router URL"
                )
        facts = read_facts(self._writer.client(), options)
        if self._across and (other := self._reader.client().model().name) != facts.model:
            raise ProbeError(f"{self._reader.url} serves {other}, and {self._writer.url} {facts.model}: no hit can be")
        snapshot = self._reader.read()
        self.course.model, self.course.dtype = facts.model, facts.dtype
        self.course.cache_tokens = facts.cache_tokens or snapshot.cache_tokens
        return facts

    def _text(self, facts: EngineFacts) -> tuple[int, ...]:
        """Token ids of a text that nobody sent before. Raises ProbeError for a length that cannot be."""
        count = prompt_length(self._plan, facts, self.course.cache_tokens)
        client = self._writer.client()
        prompt = build_prompt(
            lambda text: client.tokenize(text, facts.model), "en", count, seed=secrets.randbelow(1 << 40)
        )
        self.course.prompt_tokens = count
        return prompt.token_ids

    def _warm_up(self, ids: Sequence[int]) -> None:
        """A first request may compile or connect something; that is not what is measured."""
        for target in self._targets():
            self._say(f"{target.name}: a first request, which is not counted")
            self._ask(target, ids[:8], f"{self._salt}-warm", self._request_id("warm"), tokens=2)

    def _targets(self) -> Iterable[Target]:
        return (self._writer, self._reader) if self._across else (self._writer,)

    # -- the steps ------------------------------------------------------------------------------

    def _once(self, ids: tuple[int, ...], facts: EngineFacts, wait_s: float) -> Observed:
        salt = self._new_salt()
        before = self._writer.read()
        cold = self._step("cold", self._writer, ids, salt)
        fill = self._wait_stored(before, len(ids) // facts.unit_tokens)
        stored = read_evidence([*cold.lines, *self._new_lines()]).stored
        own = self._step("own cache", self._writer, ids, salt)
        times_s = [cold.completion.ttft_s]
        if self._across:
            times_s = [self._step("unrelated", self._reader, _turned(ids, 101), self._new_salt()).completion.ttft_s]
            time.sleep(wait_s)
        else:
            times_s += self._push_out(ids, facts, times_s[0])
        again = self._again(ids, salt, facts, times_s)
        reader = self._reader.read()
        log = read_evidence(again.lines)
        log.stored = stored
        return Observed(
            connector=connector_of(reader),
            prompt_tokens=len(ids),
            unit_tokens=facts.unit_tokens,
            fill=fill,
            again=again.counts,
            cold_s=statistics.median(times_s),
            hit_s=again.completion.ttft_s,
            answer=answer_of(cold.completion, own.completion, again.completion, facts.dtype),
            reported_tokens=again.completion.cached_tokens,
            foreign_tokens=max(0, again.counts.prompt - len(ids)),
            namespaces=(self._writer.read().namespace, reader.namespace),
            across=self._across,
            own_tokens=own.counts.local,
            log=log,
            log_read=bool(self._logs),
        )

    def _again(self, ids: tuple[int, ...], salt: str, facts: EngineFacts, times_s: list[float]) -> Step:
        """The prompt once more, when the engine's own cache has nothing of it."""
        for _ in range(PUSHES_MAX):
            again = self._step("again", self._reader, ids, salt)
            if not again.counts.local or again.counts.prompt > len(ids):
                return again
            if self._across:
                return again
            self._say(f"{self._reader.name}: {again.counts.local:,} tokens were still in the engine's own cache")
            self._push_out(ids, facts, statistics.median(times_s))
        raise ProbeError(
            f"{self._reader.url} still has the prompt in its own cache after {PUSHES_MAX} times "
            f"{self.course.cache_tokens:,} tokens of others: it is larger than it tells (--push-out reset empties it, "
            "where the engine runs with VLLM_SERVER_DEV_MODE=1)"
        )

    def _push_out(self, ids: tuple[int, ...], facts: EngineFacts, cold_s: float) -> list[float]:
        """Turn the engine's own cache over; the seconds that unrelated prompts of this length took to compute."""
        if self._plan.push_out == RESET:
            self._say(f"{self._reader.name}: empty the engine's own cache")
            self._reset()
            return []
        count = pushes(self.course.cache_tokens, len(ids), facts.unit_tokens)
        self._check_time(count, cold_s)
        times_s = []
        for number in range(1, count + 1):
            self._prompts += 1
            self._say(f"{self._reader.name}: push out, prompt {number} of {count}")
            request_id = self._request_id(f"push-{self._prompts}")
            answer = self._ask(self._reader, _turned(ids, self._prompts), self._new_salt(), request_id, tokens=1)
            times_s.append(answer.ttft_s)
        self.course.pushed_prompts += count
        self._new_lines()
        return times_s

    def _reset(self) -> None:
        try:
            self._reader.client().reset_local_cache()
        except EngineStatusError as error:
            raise ProbeError(
                f"--push-out reset needs {self._reader.url} started with VLLM_SERVER_DEV_MODE=1: {error}"
            ) from error

    def _check_time(self, count: int, cold_s: float) -> None:
        """Raises ProbeError where the limit would come first."""
        if not self.course.cache_tokens:
            raise ProbeError(
                f"{self._reader.url} does not tell how large its own cache is, so nobody can say when the prompt "
                "is pushed out: give a second engine with --engine, or --push-out reset"
            )
        left_s = self._deadline.remaining_s
        if count * cold_s > left_s:
            raise ProbeError(
                f"to push {self.course.cache_tokens:,} tokens out takes about {count * cold_s:.0f} s at this engine's "
                f"rate, and {left_s:.0f} s are left: raise --limit, give a second engine with --engine, or --push-out "
                "reset"
            )

    # -- one request ----------------------------------------------------------------------------

    def _step(self, name: str, target: Target, ids: tuple[int, ...], salt: str) -> Step:
        self._say(f"{target.name}: {name}, {len(ids):,} tokens")
        self._new_lines()
        before = target.read()
        request_id = self._request_id(name)
        completion = self._ask(target, ids, salt, request_id, tokens=self._plan.answer_tokens)
        counts = self._settled(target, before, len(ids))
        step = Step(name, target.name, request_id, completion, counts, self._new_lines())
        self.course.steps.append(step)
        return step

    def _ask(self, target: Target, ids: Sequence[int], salt: str, request_id: str, *, tokens: int) -> Completion:
        """Raises ProbeError when the limit is over."""
        left_s = self._deadline.remaining_s
        if left_s <= 0:
            raise ProbeError(f"it is not done within {self._plan.limit_s:g} s: raise --limit")
        client = target.client(request_id, timeout_s=left_s)
        request = CompletionRequest(tuple(ids), tokens, self._top_logprobs if tokens > 1 else 0, salt)
        try:
            return client.complete(request, self.course.model)
        except EngineStatusError as error:
            if error.status != 400 or "logprobs" not in error.text or not self._top_logprobs:
                raise
            self._top_logprobs = 0  # it allows fewer candidates, or none
            return self._ask(target, ids, salt, request_id, tokens=tokens)

    def _settled(self, target: Target, before: MetricsSnapshot, tokens: int) -> Counts:
        """What was counted once the counters stand still: vLLM counts a moment after it answers."""
        return self._at_rest(target, before, lambda counts, _: QUIET_S if counts.prompt >= tokens else math.inf)

    def _wait_stored(self, before: MetricsSnapshot, blocks: int) -> Counts:
        """What the engine that was filled counted, once nothing waits to be stored any more."""

        def quiet_s(counts: Counts, now: MetricsSnapshot) -> float:
            if now.total(Metric.KVEIK_PINNED_BLOCKS) + now.total(Metric.SIMPLE_OFFLOAD_PENDING):
                return math.inf
            return QUIET_S if counts.kveik is not None and counts.kveik.there_blocks >= blocks else QUIET_UNSURE_S

        return self._at_rest(self._writer, before, quiet_s)

    def _at_rest(
        self, target: Target, before: MetricsSnapshot, quiet_s: Callable[[Counts, MetricsSnapshot], float]
    ) -> Counts:
        """The counts once they have not changed for as long as ``quiet_s`` wants, or after :data:`SETTLE_S`."""
        until_s = time.monotonic() + SETTLE_S
        last, since_s = Counts(), time.monotonic()
        while True:
            snapshot = target.read()
            counts, now_s = counts_between(before, snapshot), time.monotonic()
            if counts != last:
                last, since_s = counts, now_s
            if now_s - since_s >= quiet_s(counts, snapshot) or now_s > until_s:
                return counts
            time.sleep(POLL_S)

    def _new_lines(self) -> list[str]:
        """What was written to the logs since the last call."""
        lines = [line for log in self._logs for line in log.news()]
        self.course.log_lines += lines
        return lines

    def _new_salt(self) -> str:
        self._prompts += 1
        return f"{self._salt}-{self._prompts}"

    def _request_id(self, name: str) -> str:
        return f"{self._salt}-{name.replace(' ', '-')}"


def prompt_length(plan: ProbePlan, facts: EngineFacts, cache_tokens: int) -> int:
    """How long the prompt is to be, in tokens. Raises ProbeError for a length that cannot be, or shows nothing."""
    room = min(
        (facts.max_model_tokens or 1 << 30) - plan.answer_tokens - 1,
        cache_tokens // 2 if cache_tokens else 1 << 30,
    )
    wanted = plan.prompt_tokens or min(room, max(PROMPT_TOKENS, PROMPT_UNITS * facts.unit_tokens))
    least = facts.unit_tokens + 1
    if wanted > room:
        raise ProbeError(
            f"--prompt-tokens is {wanted:,}; at most {room:,} fit: the model's length less the answer, and half of the "
            "engine's own cache"
        )
    if wanted < least:
        raise ProbeError(f"a prompt of {wanted:,} tokens is no hit: they come in units of {facts.unit_tokens:,} tokens")
    return wanted


def pushes(cache_tokens: int, prompt_tokens: int, unit_tokens: int) -> int:
    """How many unrelated prompts turn a cache of this size over, and once more the first prompt."""
    each = max(unit_tokens, prompt_tokens // unit_tokens * unit_tokens)
    return math.ceil((cache_tokens + prompt_tokens) / each)


def _of_one_rank(target: Target) -> Target:
    """The same engine, and its first data-parallel rank where it has several."""
    ranks = target.read().series(Metric.CACHE_CONFIG, "engine")
    return replace(target, rank=next(iter(ranks))) if len(ranks) > 1 else target


def _turned(ids: tuple[int, ...], number: int) -> tuple[int, ...]:
    """The same ids from another place on: as long to compute, and equal in no block, whatever a cache's key is."""
    cut = (number * 37) % len(ids)
    return ids[cut:] + ids[:cut]
