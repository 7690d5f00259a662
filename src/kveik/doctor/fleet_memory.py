"""The checks ``memory`` and ``huge-pages``: whether this machine gives what the configuration asks of memory."""

from collections.abc import Iterator, Mapping

from kveik.byte_size import size_text
from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.machine_memory import MachineMemory, look_at_memory

_GIB = 1 << 30
#: Protocols of Mooncake whose cards read and write the arena themselves, so its memory is locked.
_LOCKING = ("rdma", "ascend", "ascend_direct", "hccl")
#: What ranks of an engine with devices need to talk: docker gives 64 MiB unless told.
_RANKS_BYTES = _GIB
_SHM = "docker run --shm-size=16g, or --ipc=host"
_NO_FILE = Point(
    Outcome.UNKNOWN, "settings", "no configuration was given, so what it asks for is not known", "--config FILE"
)


def check_memory(context: Context) -> Verdict:
    """Compare settings and machine. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    described = fleet_of(context).described
    memory = look_at_memory(described.arena)
    limit = f"limited to {size_text(memory.limit_bytes)}" if memory.limit_bytes >= 0 else "without a limit"
    locked = "any size" if memory.locked_bytes < 0 else size_text(memory.locked_bytes)
    evidence = [
        f"{size_text(memory.total_bytes)} of memory, {limit}",
        f"{size_text(memory.shared_free_bytes)} of {size_text(memory.shared_total_bytes)} of shared memory free",
        f"one process may lock {locked}",
    ]
    return Verdict(evidence, list(judge_memory(described, memory)) if described.config else [_NO_FILE])


def check_huge_pages(context: Context) -> Verdict:
    """Compare variables and machine. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    described = fleet_of(context).described
    memory = look_at_memory(described.arena)
    evidence = [
        f"{memory.huge_pages_free} of {memory.huge_pages} reserved pages of {size_text(memory.huge_page_bytes)} free",
        f"in shared memory by themselves: {memory.transparent or 'not known'}",
    ]
    return Verdict(evidence, list(judge_huge_pages(described, memory, context.environ)))


def judge_memory(described: DescribedFleet, memory: MachineMemory) -> Iterator[Point]:
    """What is to be said of the arena, of all together, and of what cards lock."""
    arena = described.agent.arena_bytes if described.agent_socket else 0
    if described.agent_socket:
        yield _arena(described, memory)
    own = sum(engine.kv_cache_bytes for engine in described.here if not engine.devices)
    most = min(memory.total_bytes, memory.limit_bytes) if memory.limit_bytes >= 0 else memory.total_bytes
    if arena + own:
        yield _fits("arena and KV caches", arena + own, most, memory)
    if described.stores.mooncake.master and described.stores.mooncake.protocol in _LOCKING:
        yield _locked(arena + described.stores.mooncake.segment_bytes, memory)
    if any(engine.devices for engine in described.here) and memory.shared_total_bytes < _RANKS_BYTES:
        there = size_text(memory.shared_total_bytes)
        told = f"only {there} of it: the ranks of an engine talk through it and need more"
        yield Point(Outcome.WRONG, "shared memory", told, _SHM, "vllm-ascend, installation: --shm-size")


def judge_huge_pages(described: DescribedFleet, memory: MachineMemory, environ: Mapping[str, str]) -> Iterator[Point]:
    """What asks for reserved huge pages, and whether there are any."""
    asked = False
    for engine in described.here:
        values = {**environ, **engine.environment}
        wants = [
            f"{name}={values[name]}"
            for name in ("DS_H2D_MEMCPY_POLICY", "DS_D2H_MEMCPY_POLICY")
            if values.get(name) == "huge_ffts"
        ]
        if values.get("MC_STORE_USE_HUGEPAGE") not in {None, "", "0"}:
            wants.append(f"MC_STORE_USE_HUGEPAGE={values['MC_STORE_USE_HUGEPAGE']}")
        for want in wants:
            asked = True
            yield _reserved(f"{want} of {engine.name}", described, memory)
    if not asked:
        yield Point(Outcome.WELL, "huge pages", "nothing asks for reserved ones")


def _arena(described: DescribedFleet, memory: MachineMemory) -> Point:
    wanted = described.agent.arena_bytes
    remedy = f"a smaller agent.arena_bytes, or more shared memory ({_SHM})"
    if wanted > memory.shared_total_bytes:
        told = f"{size_text(wanted)} are wanted, and its file system has {size_text(memory.shared_total_bytes)} in all"
        return Point(Outcome.WRONG, "arena", told, remedy, "df /dev/shm")
    if wanted > memory.shared_free_bytes and not memory.arena_is_there:
        told = f"{size_text(wanted)} are wanted, and {size_text(memory.shared_free_bytes)} of shared memory are free"
        return Point(Outcome.WRONG, "arena", told, remedy, "df /dev/shm")
    told = f"{size_text(wanted)} fit into shared memory" if wanted else "its size is chosen by what is free"
    return Point(Outcome.WELL, "arena", told, source="df /dev/shm")


def _fits(about: str, wanted: int, most: int, memory: MachineMemory) -> Point:
    if wanted > most:
        what = "the cgroup (container) allows" if most == memory.limit_bytes else "the machine has"
        told = f"{size_text(wanted)} are wanted, and {what} {size_text(most)}: what exceeds it is killed"
        remedy = "smaller agent.arena_bytes and engine.kv_cache_bytes, or a larger limit (docker run --memory)"
        return Point(Outcome.WRONG, about, told, remedy, "memory.max of the cgroup, /proc/meminfo")
    return Point(Outcome.WELL, about, f"{size_text(wanted)} of {size_text(most)}")


def _locked(wanted: int, memory: MachineMemory) -> Point:
    if 0 <= memory.locked_bytes < max(wanted, 1):
        told = f"the transport locks {size_text(wanted)}, and a process may lock {size_text(memory.locked_bytes)}"
        return Point(Outcome.WRONG, "locked memory", told, "ulimit -l unlimited (docker run --ulimit memlock=-1)")
    return Point(Outcome.WELL, "locked memory", "the transport may lock what it moves")


def _reserved(about: str, described: DescribedFleet, memory: MachineMemory) -> Point:
    wanted = described.stores.mooncake.segment_bytes if about.startswith("MC_") else 0
    has = memory.huge_pages * memory.huge_page_bytes
    if not memory.huge_pages or has < wanted:
        told = f"it needs reserved huge pages, and this machine has {size_text(has)} of them"
        pages = -(-wanted // memory.huge_page_bytes) if wanted and memory.huge_page_bytes else 0
        page = size_text(memory.huge_page_bytes)
        remedy = f"sysctl vm.nr_hugepages={pages or 'N'}: the store's memory divided by {page}"
        return Point(Outcome.WRONG, about, told, remedy, "/proc/meminfo")
    return Point(Outcome.WELL, about, f"{size_text(has)} are reserved", source="/proc/meminfo")
