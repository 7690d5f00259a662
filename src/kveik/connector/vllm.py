"""vLLM's connector class: wiring only. Written for vLLM 0.32.

Contract: ``vllm/distributed/kv_transfer/kv_connector/v1/base.py``. Use it by module path::

    --kv-transfer-config '{"kv_connector": "KveikConnector", "kv_connector_module_path": "kveik.connector.vllm",
      "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}'

or by name alone, since the package registers it as a vLLM plug-in.

When something cannot be served safely, the connector says so once and then offers and saves
nothing; with the setting ``strict`` it refuses to start instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from typing import TYPE_CHECKING, Any

import torch
from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorRole,
    KVConnectorTransferResults,
    KVConnectorWorkerMetadata,
    SupportsHMA,
)
from vllm.distributed.parallel_state import get_pp_group, get_tp_group
from vllm.logger import init_logger
from vllm.v1.core.kv_cache_utils import resolve_kv_cache_block_sizes
from vllm.v1.metrics.cache_hit_source import CacheHitSource

from kveik.agent.client import AgentClient
from kveik.agent.link import AgentLink
from kveik.config import ConnectorSettings, load
from kveik.connector.adapters import RequestNamespaces
from kveik.connector.device import copier_for
from kveik.connector.identity import engine_facts, model_digest, worker_facts
from kveik.connector.jobs import KveikHandshake, KveikMetadata, KveikWorkerMetadata
from kveik.connector.layout import BlockLayout, LayerCache, block_layout, group_specs
from kveik.connector.load_advice import EngineFacts
from kveik.connector.metrics import KveikPromMetrics, KveikStats, StatsBox
from kveik.connector.plan import Shape
from kveik.connector.resting import Rest
from kveik.connector.scheduler import SchedulerSide
from kveik.connector.worker import WorkerSide
from kveik.errors import ConfigError, KveikError, LayoutRefusedError
from kveik.kv.namespace import Namespace
from kveik.records import Record, StateRecord

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.distributed.kv_transfer.kv_connector.v1.metrics import (
        KVConnectorPromMetrics,
        KVConnectorStats,
        PromMetric,
        PromMetricT,
    )
    from vllm.forward_context import ForwardContext
    from vllm.v1.attention.backend import AttentionMetadata
    from vllm.v1.core.block_pool import BlockPool
    from vllm.v1.core.kv_cache_manager import KVCacheBlocks
    from vllm.v1.core.sched.output import SchedulerOutput
    from vllm.v1.kv_cache_interface import KVCacheConfig
    from vllm.v1.outputs import KVConnectorOutput
    from vllm.v1.request import Request

logger = init_logger("vllm.kveik")
#: How long the engine's start may wait for the digest of the weights, and of that for the agent. Small
#: models and known digests are ready by then, so that the very first request can hit.
START_PATIENCE_S = 1.0
ATTACH_PATIENCE_S = 0.2
#: What vLLM calls the media of our tiers in its own metrics.
_SOURCES = {"arena": CacheHitSource.HOST, "filesystem": CacheHitSource.DISK}


class KveikConnector(KVConnectorBase_V1, SupportsHMA):
    """One instance in the scheduler's process and one in each worker's."""

    def __init__(self, vllm_config: VllmConfig, role: KVConnectorRole, kv_cache_config: KVCacheConfig) -> None:
        super().__init__(vllm_config, role, kv_cache_config)
        _adopt_logging()
        extra = self._kv_transfer_config.kv_connector_extra_config
        self._settings = load(ConnectorSettings, environ=os.environ, given=extra)
        _demand_recompute(self._kv_transfer_config.kv_load_failure_policy)
        self._stats = StatsBox()
        self._label = str(vllm_config.model_config.served_model_name)
        self._scheduler: SchedulerSide | None = None
        self._worker: WorkerSide | None = None
        self._handshake: KveikHandshake | None = None
        self._facts: dict[str, str] = {}
        self._payload_bytes: dict[int, int] = {}
        self._links: list[AgentLink] = []
        try:
            groups = group_specs(vllm_config, kv_cache_config)
            _, hash_tokens = resolve_kv_cache_block_sizes(kv_cache_config, vllm_config)
            self._facts = engine_facts(vllm_config, kv_cache_config, groups, hash_tokens)
            if role == KVConnectorRole.SCHEDULER:
                self._scheduler = self._scheduler_side(Shape(groups, hash_tokens, _drops_last_unit(vllm_config)))
        except LayoutRefusedError as refusal:
            self._refuse(str(refusal))

    def _scheduler_side(self, shape: Shape) -> SchedulerSide:
        parallel = self._vllm_config.parallel_config
        ranks = range(parallel.tensor_parallel_size * parallel.pipeline_parallel_size)
        # Engines of a data-parallel group step together: one that rests would hold up the others.
        rest_s = self._settings.load_rest_s if parallel.data_parallel_size == 1 else 0.0
        rest = Rest(rest_s, steps_ahead=max(2, parallel.pipeline_parallel_size))
        return SchedulerSide(shape, ranks, self._settings, self._stats, rest=rest)

    def _engine_facts(self) -> EngineFacts:
        """What loading and computing are judged by."""
        parallel = self._vllm_config.parallel_config
        return EngineFacts(
            payload_bytes=self._payload_bytes,
            ranks=parallel.tensor_parallel_size * parallel.pipeline_parallel_size,
            step_tokens_max=self._vllm_config.scheduler_config.max_num_batched_tokens,
        )

    def _refuse(self, reason: str) -> None:
        """Serve without the cache, or not at all where that was asked for."""
        self._scheduler, self._facts = None, {}
        self._stats.set("serving", 0)
        if self._settings.strict:
            raise LayoutRefusedError(f"Kveik cannot cache for this engine: {reason}")
        if self._role == KVConnectorRole.SCHEDULER:
            logger.error("Kveik does not cache for this engine: %s. The engine serves without it.", reason)

    # -- worker ---------------------------------------------------------------------------------

    def register_kv_caches(self, kv_caches: dict[str, LayerCache]) -> None:
        """The KV memory exists now: find its layout and start the copy threads."""
        if not self._facts:
            return
        try:
            layout = block_layout(self._kv_cache_config, kv_caches)
            facts = worker_facts(self._vllm_config, layout)
        except LayoutRefusedError as refusal:
            self._handshake = KveikHandshake(refusal=str(refusal))
            return
        sizes = {group: layout.payload_bytes(group) for group in layout.planes}
        self._handshake = KveikHandshake(facts, sizes)
        self._worker = self._worker_side(layout)

    def _worker_side(self, layout: BlockLayout) -> WorkerSide:
        rank = get_pp_group().rank_in_group * get_tp_group().world_size + get_tp_group().rank_in_group
        copier = copier_for(layout.device)
        link = AgentLink(
            self._settings.socket,
            role=f"worker {rank}",
            label=self._label,
            prefault=True,
            listener=_log_state,
            on_attach=lambda client: copier.attach(client.arena),
            on_detach=lambda client: copier.detach(client.arena),
        )
        self._links.append(link)
        link.start()
        return WorkerSide(layout, copier, rank, self._settings, self._stats, link)

    def get_handshake_metadata(self) -> KVConnectorHandshakeMetadata | None:
        """What the scheduler must know of this worker's KV bytes."""
        return self._handshake

    def start_load_kv(self, forward_context: ForwardContext, **kwargs: Any) -> None:
        """Hand the step's loads to the load thread."""
        if self._worker is not None:
            for job in self._step_metadata().loads:
                self._worker.queue_load(job)

    def has_connector_metadata(self) -> bool:
        """Nothing is to be done around a layer, so vLLM need not call the next two for each of them.

        It asks this in ``model_executor/layers/attention/kv_transfer_utils.py`` only.
        """
        return False

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: loads are asynchronous and complete before the request is scheduled."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: torch.Tensor, attn_metadata: AttentionMetadata, **kwargs: Any
    ) -> None:
        """Nothing: whole blocks are saved after the step."""

    def wait_for_save(self) -> None:
        """Hand the step's saves to the save thread; the blocks are held, so the step need not wait."""
        if self._worker is not None:
            for job in self._step_metadata().saves:
                self._worker.queue_save(job)

    def _step_metadata(self) -> KveikMetadata:
        metadata = self._get_connector_metadata()
        assert isinstance(metadata, KveikMetadata)
        return metadata

    def get_transfer_results(self, finished_req_ids: set[str]) -> KVConnectorTransferResults:
        """Loads that ended since the last step."""
        if self._worker is None:
            return KVConnectorTransferResults()
        received, failed = self._worker.take_received()
        return KVConnectorTransferResults(finished_recving=received, failed_recving=failed)

    def get_block_ids_with_load_errors(self) -> set[int]:
        """Blocks that hold nothing valid; used with one KV cache group."""
        return self._worker.take_failed_blocks() if self._worker is not None else set()

    def build_connector_worker_meta(self) -> KVConnectorWorkerMetadata | None:
        """Finished jobs, for the scheduler."""
        return self._worker.take_metadata() if self._worker is not None else None

    # -- scheduler ------------------------------------------------------------------------------

    def set_xfer_handshake_metadata_pp_aware(
        self, metadata: dict[tuple[int, int], KVConnectorHandshakeMetadata]
    ) -> None:
        """All workers have told their facts: identify the model and start serving."""
        if self._scheduler is None:
            return
        workers = [worker for worker in metadata.values() if isinstance(worker, KveikHandshake)]
        refusals = [worker.refusal for worker in workers if worker.refusal]
        if refusals:
            self._refuse(refusals[0])
            return
        for worker in workers:
            self._facts.update(worker.facts)
            for group, size in worker.payload_bytes.items():
                self._payload_bytes[group] = max(size, self._payload_bytes.get(group, 0))
        identify = threading.Thread(target=self._identify, name="kveik-identify", daemon=True)
        identify.start()
        identify.join(timeout=START_PATIENCE_S)

    def _identify(self) -> None:
        """Digest the weights, which takes time, without delaying the engine; then attach."""
        started = time.monotonic()
        try:
            digest = model_digest(
                self._vllm_config, sampled=self._settings.weights_digest == "sampled", progress=_log_progress()
            )
        except (KveikError, OSError) as error:
            logger.error("Kveik does not cache for this engine: %s. The engine serves without it.", error)
            return
        assert self._scheduler is not None
        namespace = Namespace({**self._facts, "weights_digest": digest}, self._label)
        logger.info(
            "Kveik namespace %s (%s), weights digested in %.1f s: %s",
            namespace.digest.hex(), self._label, time.monotonic() - started, dict(namespace.facts),
        )  # fmt: skip
        link = AgentLink(
            self._settings.socket,
            role="scheduler",
            label=namespace.label,
            facts=dict(namespace.facts),
            prefault=False,  # no byte of a block is read or written here
            on_attach=self._attached,
            on_beat=self._scheduler.tell,
            listener=_log_state,
        )
        self._links.append(link)
        link.start()
        self._scheduler.open(link, RequestNamespaces(namespace), self._engine_facts())
        self._stats.set("serving", 1)
        self._stats.set("namespace", 1, digest=namespace.digest.hex())
        link.wait_attached(ATTACH_PATIENCE_S)

    def _attached(self, client: AgentClient) -> None:
        """Another agent, or the same one again: show what it has to say, and tell it what we keep for it."""
        for note in client.welcome.notes:
            logger.warning("Kveik: %s", note)
        if self._scheduler is not None:
            self._scheduler.tell_all()

    def bind_gpu_block_pool(self, gpu_block_pool: BlockPool) -> None:
        """Remember the pool that holds blocks while they are being saved."""
        if self._scheduler is not None:
            self._scheduler.bind_pool(gpu_block_pool)

    @property
    def requires_kv_delivery(self) -> bool:
        """A cache may drop a save."""
        return False

    def on_new_request(self, request: Request) -> None:
        """A request came in."""
        if self._scheduler is not None:
            self._scheduler.add(request)

    def get_num_new_matched_tokens(self, request: Request, num_computed_tokens: int) -> tuple[int | None, bool]:
        """Tokens to load beyond the engine's own hit; loads are always asynchronous.

        A synchronous load of a model with several groups or with states cannot be recovered when
        it fails and is overwritten by vLLM's own state copy.
        """
        return self._scheduler.offer(request, num_computed_tokens) if self._scheduler is not None else (0, False)

    def update_state_after_alloc(self, request: Request, blocks: KVCacheBlocks, num_external_tokens: int) -> None:
        """Blocks were allocated for the offer."""
        if self._scheduler is not None:
            self._scheduler.allocated(request, blocks, num_external_tokens)

    def get_external_cache_hit_sources(self, request: Request, num_external_tokens: int) -> dict[CacheHitSource, int]:
        """Split a hit's tokens by the medium of the tier that has them."""
        if self._scheduler is None or num_external_tokens == 0:
            return {}
        split: dict[CacheHitSource, int] = {}
        for place, tokens in self._scheduler.sources(request, num_external_tokens).items():
            source = _SOURCES.get(self._scheduler.place_name(place), CacheHitSource.P2P)
            split[source] = split.get(source, 0) + tokens
        return split

    def build_connector_meta(self, scheduler_output: SchedulerOutput) -> KVConnectorMetadata:
        """This step's jobs."""
        if self._scheduler is None:
            return KveikMetadata()
        metadata = self._scheduler.plan_step(scheduler_output)
        if self._scheduler.rest_s:
            time.sleep(self._scheduler.rest_s)
        return metadata

    def update_connector_output(self, connector_output: KVConnectorOutput) -> None:
        """A step came back."""
        if self._scheduler is not None:
            report = connector_output.kv_connector_worker_meta
            self._scheduler.step_done(report if isinstance(report, KveikWorkerMetadata) else None)

    def request_finished(self, request: Request, block_ids: list[int]) -> tuple[bool, dict[str, Any] | None]:
        """See :meth:`request_finished_all_groups`."""
        return self.request_finished_all_groups(request, (block_ids,))

    def request_finished_all_groups(
        self, request: Request, block_ids: tuple[list[int], ...]
    ) -> tuple[bool, dict[str, Any] | None]:
        """Save what is left of the request; its blocks may be freed, since ours are held by reference."""
        if self._scheduler is not None:
            self._scheduler.finished(request, block_ids)
        return False, None

    def has_pending_push_work(self) -> bool:
        """Keep the engine stepping until held blocks are released."""
        return self._scheduler is not None and self._scheduler.has_saves_under_way

    def reset_cache(self) -> bool | None:
        """A shared cache is not one engine's to empty; the engine's own reset leaves it alone."""
        return True

    # -- both -----------------------------------------------------------------------------------

    def get_kv_connector_stats(self) -> KVConnectorStats | None:
        """Counts since the last step, of this side."""
        return self._stats.take()

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any] | None = None) -> KVConnectorStats | None:
        """Stats from their serialised form."""
        return KveikStats(data)

    @classmethod
    def build_prom_metrics(
        cls,
        vllm_config: VllmConfig,
        metric_types: dict[type[PromMetric], type[PromMetricT]],
        labelnames: list[str],
        per_engine_labelvalues: dict[int, list[object]],
    ) -> KVConnectorPromMetrics | None:
        """Our metrics on the engine's ``/metrics``."""
        return KveikPromMetrics(vllm_config, metric_types, labelnames, per_engine_labelvalues)

    def shutdown(self) -> None:
        """Leave the agent; engines are often killed instead, so nothing depends on this."""
        for link in self._links:
            link.close()


def _demand_recompute(policy: str) -> None:
    if policy != "recompute":
        raise ConfigError(
            f"kv_load_failure_policy is {policy!r}, expected 'recompute': with any other policy one lost block fails "
            'a user\'s request. Add "kv_load_failure_policy": "recompute" to --kv-transfer-config'
        )


def _drops_last_unit(vllm_config: VllmConfig) -> bool:
    speculative = vllm_config.speculative_config
    return speculative is not None and speculative.use_eagle_block_drop()


def _adopt_logging() -> None:
    """Let Kveik's own loggers write through vLLM's handlers."""
    kveik = logging.getLogger("kveik")
    kveik.parent = logging.getLogger("vllm")


def _log_state(record: Record) -> None:
    if isinstance(record, StateRecord):
        logger.info("Kveik: %s is %s: %s", record.part, record.after, record.why)


def _log_progress() -> Any:
    """A progress callback that speaks at most every five seconds."""
    last = [time.monotonic()]

    def progress(done: int, total: int) -> None:
        if time.monotonic() - last[0] > 5:
            last[0] = time.monotonic()
            logger.info("Kveik: digesting the weights, %.1f of %.1f GiB", done / 2**30, total / 2**30)

    return progress
