"""The scheduler's side: offers hits, plans loads and saves, holds blocks that are being saved.

Runs on the engine core's scheduling thread. No call here waits for the agent longer than
:data:`PATIENCE_S`; a lookup that takes longer makes vLLM ask again in its next step (``None``)
until the lookup's deadline, after which the request computes.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from concurrent.futures import TimeoutError as FutureTimeoutError
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kveik.agent.client import AgentClient
from kveik.agent.funnel import RequestFunnel
from kveik.agent.link import AgentLink
from kveik.agent.protocol import Located
from kveik.breaker import CLOSED, Breaker, BreakerPolicy
from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config import ConnectorSettings
from kveik.connector import funnel, plan
from kveik.connector.adapters import RequestNamespaces
from kveik.connector.jobs import KveikMetadata, KveikWorkerMetadata, LoadJob, SaveJob
from kveik.connector.load_advice import EngineFacts, EngineLoad, Load, LoadAdvice
from kveik.connector.load_choice import ALWAYS, Choice, Cut, refused_places
from kveik.connector.metrics import StatsBox
from kveik.connector.plan import BlockRef, Found, Shape
from kveik.connector.resting import Rest
from kveik.connector.sounding import sound
from kveik.errors import AgentError
from kveik.kv.groups import GroupKind

if TYPE_CHECKING:
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.request import Request

PATIENCE_S = 0.002
OFFER_LIFETIME_S = 2.0
FAILED_KEYS_KEPT = 4096
FAILED_KEY_LIFETIME_S = 30.0
#: Records of requests in one message: it goes over the connection that lookups use, and must not hold them up.
TOLD_AT_ONCE = 16
#: Requests that came before one are looked at up to so many, to know when the engine is free for it.
AHEAD_MAX = 64


@dataclass(frozen=True, slots=True)
class Offer:
    """A finished lookup: what can be loaded beyond the engine's own hit, and until when that counts."""

    local_tokens: int
    hit_tokens: int
    valid_until_s: float
    found: Found | None = None
    reason: str = ""


@dataclass(slots=True)
class PendingLookup:
    """A lookup under way."""

    local_tokens: int
    limit_tokens: int
    parts: list[plan.LookupPart]
    future: Future[Located]
    started_s: float


@dataclass(slots=True)
class ActiveLoad:
    """A load that the workers carry out; its blocks hold nothing valid until it ended."""

    local_tokens: int
    hit_tokens: int
    blocks: list[BlockRef]
    load: Load | None = None


@dataclass(slots=True)
class HeldSave:
    """Blocks held until every rank has saved them."""

    block_ids: list[int]
    refs: list[BlockRef]
    ranks_missing: int
    seen: RequestFunnel | None = None
    dropped: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class RequestState:
    """What the connector knows of one request. Tokens are counted from its start. ``seen``: what is kept of it."""

    request: Request
    seen: RequestFunnel | None = None
    pending: PendingLookup | None = None
    offer: Offer | None = None
    load: ActiveLoad | None = None
    started: bool = False
    saved_tokens: int = 0
    computed_tokens: int = 0
    limit_tokens: int | None = None


@dataclass(slots=True)
class FailedKeys:
    """Blocks whose load failed lately, so that they are not offered again at once."""

    until_s: OrderedDict[tuple[int, bytes], float] = field(default_factory=OrderedDict)

    def add(self, keys: Iterable[tuple[int, bytes]], now_s: float) -> None:
        """Remember keys for a while."""
        for key in keys:
            self.until_s[key] = now_s + FAILED_KEY_LIFETIME_S
            self.until_s.move_to_end(key)
        while len(self.until_s) > FAILED_KEYS_KEPT:
            self.until_s.popitem(last=False)

    def discard(self, keys: Iterable[tuple[int, bytes]]) -> None:
        """These blocks were saved anew."""
        for key in keys:
            self.until_s.pop(key, None)

    def current(self, now_s: float) -> frozenset[tuple[int, bytes]]:
        """The keys that still count as absent."""
        while self.until_s and next(iter(self.until_s.values())) <= now_s:
            self.until_s.popitem(last=False)
        return frozenset(self.until_s)


class SchedulerSide:
    """One engine's scheduler. ``ranks`` are the ranks whose blocks must all be there for a hit."""

    def __init__(
        self,
        shape: Shape,
        ranks: Sequence[int],
        settings: ConnectorSettings,
        stats: StatsBox,
        clock: Clock = SYSTEM_CLOCK,
        rest: Rest | None = None,
    ) -> None:
        self._shape = shape
        self._ranks = list(ranks)
        self._settings = settings
        self._stats = stats
        self._clock = clock
        self._link: AgentLink | None = None
        self._namespaces: RequestNamespaces | None = None
        self._pool: BlockPool | None = None
        self._state_groups = frozenset(g.index for g in shape.groups if g.kind is GroupKind.STATE)
        self._requests: dict[str, RequestState] = {}
        self._failed = FailedKeys()
        self._breaker = Breaker(BreakerPolicy(failures=3, open_s=1.0, open_max_s=30.0))
        self._patient = True
        self._loads: list[LoadJob] = []
        self._saves: list[SaveJob] = []
        self._loading: set[str] = set()
        self._rest = rest or Rest(0.0, 0)
        #: How long the engine should rest before the step that was planned last.
        self.rest_s = 0.0
        self._pinned: dict[int, HeldSave] = {}
        self._pinned_blocks = 0
        self._next_job = 0
        self._advice = LoadAdvice(shape)
        self._funnels = funnel.Funnels(settings.funnel_requests, shape, clock, saves=settings.save)
        self._not_begun: dict[str, RequestFunnel] = {}

    # -- set-up ---------------------------------------------------------------------------------

    def open(self, link: AgentLink, namespaces: RequestNamespaces, facts: EngineFacts | None = None) -> None:
        """Start offering: the model is identified and the link to the agent is up and running.

        Without ``facts`` everything that is there is loaded.
        """
        if facts is not None:
            self._advice.learn_facts(facts)
        self._namespaces, self._link = namespaces, link

    def _namespace(self, request: Request) -> bytes:
        """The namespace of a request's blocks; empty while it is not known."""
        return self._namespaces.of(request.lora_request) if self._namespaces is not None else b""

    def bind_pool(self, pool: BlockPool) -> None:
        """The engine's block pool, used to hold blocks while they are being saved."""
        self._pool = pool

    @property
    def _client(self) -> AgentClient | None:
        """The attached agent, if there is one now."""
        return self._link.client if self._link is not None else None

    @property
    def _attached(self) -> bool:
        return self._client is not None

    # -- requests -------------------------------------------------------------------------------

    def add(self, request: Request) -> RequestState:
        """A request came in."""
        state = self._requests[request.request_id] = RequestState(request, self._funnels.begin(request))
        return state

    def offer(self, request: Request, local_tokens: int) -> tuple[int | None, bool]:
        """How many tokens beyond ``local_tokens`` can be loaded; None while the agent is being asked."""
        state = self._requests.get(request.request_id) or self.add(request)
        now_s = self._clock.monotonic()
        offer = state.offer
        if offer is None or offer.local_tokens != local_tokens or now_s > offer.valid_until_s:
            offer = state.offer = self._look_up(state, local_tokens, now_s)
            if offer is not None and offer.hit_tokens > local_tokens and offer.found is not None:
                offer = state.offer = self._chosen(state, offer, offer.found, now_s)
        if offer is None:
            return None, False
        tokens = offer.hit_tokens - local_tokens
        if tokens >= self._settings.min_hit_tokens:
            return tokens, True
        funnel.note_too_few(state.seen)
        return 0, False

    def _look_up(self, state: RequestState, local_tokens: int, now_s: float) -> Offer | None:
        """A finished lookup, or None while one is under way."""
        pending = state.pending
        if pending is None or pending.local_tokens != local_tokens:
            started = self._begin_lookup(state, local_tokens, now_s)
            if isinstance(started, Offer):
                return started
            pending = state.pending = started
        answer = self._poll(pending)
        if answer is None and now_s - pending.started_s < self._settings.lookup_deadline_s:
            return None
        state.pending = None
        return self._conclude(state, pending, answer)

    def _begin_lookup(self, state: RequestState, local_tokens: int, now_s: float) -> PendingLookup | Offer:
        nothing = Offer(local_tokens, local_tokens, now_s + OFFER_LIFETIME_S)
        request = state.request
        limit = plan.hit_limit_tokens(
            self._shape,
            request.num_tokens,
            len(request.block_hashes),
            local_tokens=local_tokens,
            whole_prompt=self._settings.whole_prompt_hits,
        )
        if state.limit_tokens is not None:
            limit = min(limit, state.limit_tokens)
        client, namespace = self._client, self._namespace(request)
        funnel.note_limits(state.seen, namespace, request.block_hashes, local_tokens, limit)
        if limit - local_tokens < self._settings.min_hit_tokens or request.skip_reading_prefix_cache:
            funnel.note_lookup(state.seen, "skipped" if request.skip_reading_prefix_cache else "short")
            return nothing
        if client is None or not namespace:
            return self._not_asked(state, nothing, "detached" if namespace else "pending")
        self._breaker, permitted = self._breaker.permit(now_s)
        if not permitted:
            return self._not_asked(state, nothing, "breaker_open")
        parts = plan.lookup_parts(self._shape, request.block_hashes, local_tokens, limit)
        future = client.submit_lookup(
            namespace,
            self._ranks,
            [(part.group, part.hashes) for part in parts],
            self._settings.lookup_deadline_s,
            self._advice.news(now_s),
        )
        self._stats.add("tokens_asked", limit - local_tokens)
        return PendingLookup(local_tokens, limit, parts, future, now_s)

    def _not_asked(self, state: RequestState, nothing: Offer, outcome: str) -> Offer:
        self._stats.add("lookups", outcome=outcome)
        funnel.note_lookup(state.seen, outcome)
        return nothing

    def _poll(self, pending: PendingLookup) -> Located | AgentError | None:
        """The answer or its error if it is there. Waits a moment for it while the agent is quick."""
        try:
            return pending.future.result(timeout=PATIENCE_S if self._patient else 0)
        except FutureTimeoutError:
            self._patient = False
            return None
        except CancelledError:
            return AgentError("the lookup was cancelled")
        except AgentError as error:
            return error

    def _conclude(self, state: RequestState, pending: PendingLookup, answer: Located | AgentError | None) -> Offer:
        now_s = self._clock.monotonic()
        until_s = now_s + OFFER_LIFETIME_S
        local_tokens = pending.local_tokens
        seconds = now_s - pending.started_s
        self._stats.add("lookup_seconds", seconds)
        if not isinstance(answer, Located):
            pending.future.cancel()
            self._set_breaker(self._breaker.failed(now_s, timed_out=answer is None))
            outcome = "deadline" if answer is None else "failed"
            self._stats.add("lookups", outcome=outcome)
            funnel.note_lookup(state.seen, outcome, pending.started_s, seconds)
            return Offer(local_tokens, local_tokens, until_s, reason="no answer from the agent in time")
        self._patient = seconds <= 4 * PATIENCE_S
        self._set_breaker(self._breaker.succeeded())
        self._advice.hear(answer.rates)
        found, failed = plan.found_of(local_tokens, pending.parts, answer), self._failed.current(now_s)
        hit = plan.usable(self._shape, found, pending.limit_tokens, failed)
        tokens = max(hit.tokens, local_tokens)
        outcome = "hit" if tokens > local_tokens else "miss"
        self._stats.add("lookups", outcome=outcome)
        self._stats.add("known_blocks", sum(len(row) - row.count(0) for row in answer.places))
        funnel.note_lookup(state.seen, outcome, pending.started_s, seconds)
        funnel.note_found(state.seen, self._shape, found, hit, failed, self.place_name)
        if tokens > local_tokens:
            self._stats.add("tokens_found", tokens - local_tokens)
        return Offer(local_tokens, tokens, until_s, found, hit.reason)

    def _chosen(self, state: RequestState, offer: Offer, found: Found, now_s: float) -> Offer:
        """The offer, cut down to what is worth loading."""
        options = self._advice.options(found, offer.hit_tokens, self._failed.current(now_s))
        if self._settings.load_choice == ALWAYS or not options:
            choice = Choice(offer.hit_tokens, ALWAYS)
        else:
            choice = self._advice.choose(
                options, offer.local_tokens, state.request.num_tokens, self._engine_load(state), now_s
            )
            self._sound(state.request, found, options, choice, now_s)
        self._stats.add("load_choices", choice=choice.reason)
        funnel.note_choice(state.seen, choice)
        self._stats.add("tokens_allowed", choice.tokens - offer.local_tokens)
        if choice.tokens == offer.hit_tokens:
            return offer
        reason = (
            f"loading is no faster: {choice.tokens - offer.local_tokens} tokens in {choice.load_s:.3f} s, "
            f"first token after {choice.first_token_s:.3f} s, {choice.cold_s:.3f} s if all is computed"
        )
        return replace(offer, hit_tokens=choice.tokens, reason=reason)

    def _engine_load(self, asking: RequestState) -> EngineLoad:
        """What the engine will compute before it comes to a request."""
        ahead: list[tuple[int, int]] = []
        generating = 0
        for state in self._requests.values():
            if state is asking or len(ahead) >= AHEAD_MAX:
                break
            request = state.request
            hit = state.load.hit_tokens if state.load is not None else 0
            computed = max(request.num_computed_tokens, hit)
            if computed < request.num_prompt_tokens:
                ahead.append((computed, request.num_prompt_tokens))
            else:
                generating += 1
        return EngineLoad(ahead, generating)

    def _sound(self, request: Request, found: Found, options: Sequence[Cut], choice: Choice, now_s: float) -> None:
        """Have a tier timed from which nothing is loaded, in the background: it may have become faster."""
        client = self._client
        facts = self._advice.facts
        if client is None or facts is None:
            return
        for place, blocks in self._advice.sounding(refused_places(options, choice), now_s).items():
            asked = sound(client, self._namespace(request), self._ranks[0], found, place, blocks, facts.payload_bytes)
            self._stats.add("sounded_blocks", asked, tier=self.place_name(place))

    def _set_breaker(self, breaker: Breaker) -> None:
        self._breaker = breaker
        self._stats.set("breaker_open", int(breaker.state != CLOSED))

    def allocated(self, request: Request, blocks: KVCacheBlocks, external_tokens: int) -> None:
        """vLLM allocated blocks; load if it took the offer."""
        state = self._requests.get(request.request_id)
        if state is not None and state.seen is not None and state.seen.computed_from < 0:
            local_tokens = state.offer.local_tokens if state.offer is not None else 0
            funnel.note_taken(state.seen, local_tokens, external_tokens)
            self._not_begun[request.request_id] = state.seen
            self._funnels.changed(state.seen)
        if state is None or external_tokens <= 0 or state.offer is None or state.load is not None:
            return
        local_tokens = state.offer.local_tokens
        hit_tokens = local_tokens + external_tokens
        refs, complete = plan.load_blocks(
            self._shape, request.block_hashes, blocks.get_block_ids(), local_tokens, hit_tokens
        )
        now_s = self._clock.monotonic()
        found = state.offer.found
        load = self._advice.begin(found, local_tokens, hit_tokens, now_s) if found is not None else None
        state.load = ActiveLoad(local_tokens, hit_tokens, refs, load)
        deadline_s = self._settings.load_deadline_s or self._advice.prefill.deadline_s(
            local_tokens, hit_tokens, self._settings.load_deadline_max_s, now_s
        )
        self._loading.add(request.request_id)
        self._loads.append(LoadJob(request.request_id, self._namespace(request), refs, deadline_s, complete))

    def sources(self, request: Request, external_tokens: int) -> dict[int, int]:
        """The tokens of a hit by place (1 the arena, 2 and up the lower tiers)."""
        state = self._requests.get(request.request_id)
        if state is None or state.offer is None or state.offer.found is None:
            return {}
        return plan.tokens_by_place(self._shape, state.offer.found, state.offer.local_tokens + external_tokens)

    def place_name(self, place: int) -> str:
        """The name of the tier at a place, as the agent gave it."""
        client = self._client
        places = client.welcome.places if client is not None else []
        return places[place] if 0 <= place < len(places) else ""

    # -- steps ----------------------------------------------------------------------------------

    def plan_step(self, output: SchedulerOutput) -> KveikMetadata:
        """The jobs of one step."""
        self._advice.prefill.step_begins(self._clock.monotonic(), self._parts(output))
        self._stats.set("attached", int(self._attached))
        if self._settings.save and self._attached and output.kv_connector_block_state is not None:
            self._plan_saves(output)
        if self._not_begun:
            self._note_begun(output)
        for request_id in output.finished_req_ids:
            self._requests.pop(request_id, None)
            self._not_begun.pop(request_id, None)
        jobs = len(self._loads) + len(self._saves)
        self.rest_s = self._rest.before_step(output.total_num_scheduled_tokens, jobs, len(self._loading))
        metadata = KveikMetadata(self._loads, self._saves)
        self._loads, self._saves = [], []
        return metadata

    def _note_begun(self, output: SchedulerOutput) -> None:
        """Requests whose computing begins in this step: from where on is what was saved by their hits."""
        for request_id in [name for name in self._not_begun if name in output.num_scheduled_tokens]:
            seen, state = self._not_begun.pop(request_id), self._requests.get(request_id)
            if state is not None:
                seen.computed_from = state.request.num_computed_tokens
                self._funnels.changed(seen)

    def tell(self, client: AgentClient) -> None:
        """Tell the agent of requests that changed. For a thread in the background, every half second."""
        records = self._funnels.take()
        if client.takes("TellRequests"):
            for start in range(0, len(records), TOLD_AT_ONCE):
                client.tell_requests(records[start : start + TOLD_AT_ONCE])

    def tell_all(self) -> None:
        """Another agent has come: it is told of all requests that are kept."""
        self._funnels.tell_all()

    def _parts(self, output: SchedulerOutput) -> Iterable[tuple[int, int]]:
        """Each request of a step: its tokens before, and the new ones."""
        for request_id, scheduled in output.num_scheduled_tokens.items():
            state = self._requests.get(request_id)
            yield (state.request.num_computed_tokens if state is not None else 0), scheduled

    def _plan_saves(self, output: SchedulerOutput) -> None:
        block_state = output.kv_connector_block_state
        assert block_state is not None
        for request_id, scheduled in output.num_scheduled_tokens.items():
            state = self._requests.get(request_id)
            tables = block_state.get_block_ids(request_id)
            if state is None or tables is None:
                continue
            if not state.started:
                state.started, state.saved_tokens = True, state.request.num_computed_tokens
            state.computed_tokens = state.request.num_computed_tokens + scheduled
            self._save_new_blocks(state, tables)
        for request_id, entries in block_state.boundary_state_offloads.items():
            state = self._requests.get(request_id)
            if state is not None:
                self._save(state, self._boundary_states(state.request, entries))

    def _room(self) -> int:
        """How many more blocks of the engine may be held: half of its pool at most."""
        assert self._pool is not None, "vLLM binds the block pool before the first step"
        return min(self._settings.save_queue_blocks, self._pool.num_gpu_blocks // 2) - self._pinned_blocks

    def _save_new_blocks(self, state: RequestState, tables: Sequence[Sequence[int]], *, ended: bool = False) -> None:
        hashes = state.request.block_hashes
        end = min(state.computed_tokens, len(hashes) * self._shape.hash_tokens)
        if not self._settings.save_decoded:
            end = min(end, state.request.num_prompt_tokens)
        if not ended:  # what finds no room waits for the next step
            end = min(end, plan.room_end_tokens(self._shape, state.saved_tokens, self._room()))
        if end > state.saved_tokens:
            refs = plan.save_blocks(self._shape, hashes, tables, state.saved_tokens, end, self._state_groups)
            state.saved_tokens = end
            self._save(state, refs)

    def _boundary_states(self, request: Request, entries: Iterable[tuple[int, int, int]]) -> list[BlockRef]:
        """States that vLLM hands over with their exact block; only those at block ends have a key."""
        groups = {group.index: group for group in self._shape.groups}
        refs = []
        for group_index, block_id, position in entries:
            group = groups.get(group_index)
            index = position // self._shape.hash_tokens - 1
            if group is None or block_id == plan.NULL_BLOCK or position % group.block_tokens:
                continue
            if 0 <= index < len(request.block_hashes):
                refs.append(BlockRef(group_index, block_id, bytes(request.block_hashes[index])))
        return refs

    def _save(self, state: RequestState, refs: list[BlockRef]) -> None:
        """Queue a save and hold its blocks, within the limit of what may be held."""
        namespace = self._namespace(state.request)
        if not refs or not namespace:
            return
        room = max(0, self._room())
        if room < len(refs):
            self._stats.add("save_dropped_blocks", len(refs) - room, reason="queue_full")
            funnel.note_dropped(state.seen, {"queue_full": len(refs) - room})
            refs = refs[:room]
        if not refs:
            return
        assert self._pool is not None
        block_ids = sorted({ref.block_id for ref in refs})
        self._pool.touch([self._pool.blocks[block_id] for block_id in block_ids])
        self._next_job += 1
        self._pinned[self._next_job] = HeldSave(block_ids, refs, len(self._ranks), state.seen)
        funnel.note_saving(state.seen)
        self._pinned_blocks += len(block_ids)
        self._stats.set("pinned_blocks", self._pinned_blocks)
        self._saves.append(SaveJob(self._next_job, namespace, refs))

    def step_done(self, report: KveikWorkerMetadata | None) -> None:
        """A step's output came back, with what the workers finished meanwhile."""
        self._advice.prefill.step_ends(self._clock.monotonic())
        if report is None:
            return
        for job_id, ranks in report.saved.items():
            self._saved(job_id, ranks, report.dropped.get(job_id, {}))
        for request_id, failed in report.loaded.items():
            seconds, failures = report.load_seconds.get(request_id, 0.0), report.failures.get(request_id, {})
            self._loaded(request_id, frozenset(failed), seconds, failures)

    def _saved(self, job_id: int, ranks: int, dropped: Mapping[str, int]) -> None:
        held = self._pinned[job_id]
        held.ranks_missing -= ranks
        if dropped:
            held.dropped = funnel.summed(held.dropped, dropped)
        if held.ranks_missing > 0:
            return
        del self._pinned[job_id]
        assert self._pool is not None
        self._pool.free_blocks(self._pool.blocks[block_id] for block_id in reversed(held.block_ids))
        self._failed.discard((ref.group, ref.block_hash) for ref in held.refs)
        funnel.note_saved(held.seen, len(held.refs) * len(self._ranks), held.dropped)
        self._funnels.changed(held.seen)
        self._pinned_blocks -= len(held.block_ids)
        self._stats.set("pinned_blocks", self._pinned_blocks)

    def _loaded(
        self, request_id: str, failed: frozenset[tuple[int, bytes]], seconds: float, failures: Mapping[str, int]
    ) -> None:
        self._loading.discard(request_id)
        state = self._requests.get(request_id)
        self._failed.add(failed, self._clock.monotonic())
        if state is None or state.load is None:
            return
        load, state.load, state.offer = state.load, None, None
        usable = plan.surviving_tokens(self._shape, load.blocks, failed, load.local_tokens, load.hit_tokens)
        self._stats.add("tokens_used", usable - load.local_tokens)
        funnel.note_loaded(state.seen, usable, seconds, failures)
        if load.load is not None:
            self._book(load.load, usable - load.local_tokens, seconds)
        if failed:
            self._stats.add("tokens_lost", load.hit_tokens - usable)
            state.limit_tokens = plan.limit_after_failure(
                self._shape, state.request.block_hashes, load.blocks, failed, load.hit_tokens
            )

    def _book(self, load: Load, used_tokens: int, seconds: float) -> None:
        """Learn from a load that ended, and count what it was worth."""
        gains = self._advice.ended(load, used_tokens, seconds, self.place_name, self._clock.monotonic())
        for tier, gain in gains.items():
            self._stats.add("seconds_saved", gain.saved_s, tier=tier)
            self._stats.add("seconds_lost", gain.lost_s, tier=tier)

    # -- ends -----------------------------------------------------------------------------------

    def finished(self, request: Request, tables: Sequence[Sequence[int]]) -> None:
        """A request ended (or was aborted); its blocks are freed after this call, unless held."""
        state = self._requests.get(request.request_id)
        if state is None:
            return
        if state.pending is not None:
            state.pending.future.cancel()
        if state.seen is not None:
            state.seen.ended = True
            self._funnels.changed(state.seen)
        if state.load is None and state.started and self._settings.save and self._attached:
            self._save_new_blocks(state, tables, ended=True)

    @property
    def has_saves_under_way(self) -> bool:
        """Whether the engine must go on stepping for held blocks to be released."""
        return bool(self._pinned or self._saves)
