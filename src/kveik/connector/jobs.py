"""What the scheduler's side and the workers' side of the connector tell each other."""

from dataclasses import dataclass, field

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorHandshakeMetadata,
    KVConnectorMetadata,
    KVConnectorWorkerMetadata,
)

from kveik.connector.funnel import summed
from kveik.connector.plan import BlockRef


@dataclass(frozen=True, slots=True)
class LoadJob:
    """Fill these blocks of one request. ``deadline_s`` counts from when the worker gets the job.

    With ``complete`` false the engine lacks blocks that the hit needs: report all as failed.
    """

    request_id: str
    namespace: bytes
    blocks: list[BlockRef]
    deadline_s: float
    complete: bool = True


@dataclass(frozen=True, slots=True)
class SaveJob:
    """Save these blocks; they stay pinned until every rank has reported ``job_id``."""

    job_id: int
    namespace: bytes
    blocks: list[BlockRef]


@dataclass
class KveikMetadata(KVConnectorMetadata):
    """Scheduler to workers, once a step. Namespaces in jobs are 16-byte digests."""

    loads: list[LoadJob] = field(default_factory=list)
    saves: list[SaveJob] = field(default_factory=list)


@dataclass
class KveikWorkerMetadata(KVConnectorWorkerMetadata):
    """Workers to scheduler, once a step.

    ``saved`` counts for each save job the ranks that are done with it; ``loaded`` holds for each
    request whose load ended the (group, block hash) pairs that failed on any rank, ``load_seconds`` how
    long the slowest rank worked on it. ``dropped`` and ``failures`` count blocks of all ranks by reason, for jobs and
    requests that lost some.
    """

    saved: dict[int, int] = field(default_factory=dict)
    loaded: dict[str, set[tuple[int, bytes]]] = field(default_factory=dict)
    load_seconds: dict[str, float] = field(default_factory=dict)
    dropped: dict[int, dict[str, int]] = field(default_factory=dict)
    failures: dict[str, dict[str, int]] = field(default_factory=dict)

    def aggregate(self, other: KVConnectorWorkerMetadata) -> "KveikWorkerMetadata":
        """This and another rank's report as one."""
        if not isinstance(other, KveikWorkerMetadata):
            raise TypeError(f"cannot aggregate {type(other).__name__} into KveikWorkerMetadata")
        for job_id, ranks in other.saved.items():
            self.saved[job_id] = self.saved.get(job_id, 0) + ranks
        for request_id, failed in other.loaded.items():
            self.loaded.setdefault(request_id, set()).update(failed)
        for request_id, seconds in other.load_seconds.items():
            self.load_seconds[request_id] = max(seconds, self.load_seconds.get(request_id, 0.0))
        for job_id, dropped in other.dropped.items():
            self.dropped[job_id] = summed(self.dropped.get(job_id, {}), dropped)
        for request_id, failures in other.failures.items():
            self.failures[request_id] = summed(self.failures.get(request_id, {}), failures)
        return self


@dataclass
class KveikHandshake(KVConnectorHandshakeMetadata):
    """Worker to scheduler, once at start: what only the worker knows of the KV bytes.

    ``facts`` join the namespace; ``payload_bytes`` is the size of one block for each group.
    ``refusal`` says why this worker's layout cannot be served, empty when it can.
    """

    facts: dict[str, str] = field(default_factory=dict)
    payload_bytes: dict[int, int] = field(default_factory=dict)
    refusal: str = ""
