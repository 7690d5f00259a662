"""What the facts about a store mean: does it keep blocks and serve them? Pure."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_described import host_of, is_loopback
from kveik.doctor.store_facts import StoreFacts
from kveik.store.probe_verdict import Verdict

_GUIDE = "guide: Yuanrong as a multi-level cache, troubleshooting"
_LIES = frozenset({Verdict.NOT_SERVED, Verdict.OTHER_BYTES, Verdict.EMPTIED})


@dataclass(frozen=True, slots=True)
class _Kind:
    """What is special of a kind of store: its address setting, how it is brought up, and where trouble is explained."""

    setting: str
    start: str
    lies: str
    source: str = ""
    of_this_node: bool = False


_KINDS: Mapping[str, _Kind] = {
    "mooncake": _Kind(
        "mooncake.master",
        "mooncake_master --rpc_port=50051 on one machine, on an address that all nodes reach",
        "look for a segment whose owner is gone, and for a mooncake.host that others do not reach: kveik doctor pairs",
        "Mooncake 0.3.13",
    ),
    "yuanrong": _Kind(
        "yuanrong.worker",
        "dscli start -w --worker_address THIS_NODE:PORT --etcd_address ETCD:2379, on each node; all with one etcd",
        "look at the worker's log, and whether all workers have one etcd: kveik doctor pairs",
        _GUIDE,
        of_this_node=True,
    ),
    "redis": _Kind(
        "redis.address",
        "one redis-server for all nodes, with maxmemory and an eviction policy",
        "maxmemory-policy and maxmemory: a server without room drops at once",
        "redis.io, INFO",
    ),
    "filesystem": _Kind(
        "agent.filesystem",
        "mount it on every node at the same path",
        "the mount and its server; kveik fsck",
        "",
    ),
}


def judge_store(facts: StoreFacts, own: Collection[str]) -> Iterator[Point]:
    """What is to be said of one store. ``own``: the addresses of this machine."""
    yield from _address(facts, own)
    yield _served(facts)
    if facts.agent is not None:
        yield _agents_tier(facts)


def _address(facts: StoreFacts, own: Collection[str]) -> Iterator[Point]:
    """Whether what is to be this node's own is; the check ``addresses`` speaks of loopback ones."""
    kind = _KINDS[facts.name]
    host = host_of(facts.address)
    if kind.of_this_node and own and host and host not in own and not is_loopback(host):
        told = "this machine does not have that address: each node is to use a worker of its own"
        about = f"{kind.setting} is {facts.address}"
        yield Point(Outcome.BEWARE, about, told, f"this node's address; {kind.start}", kind.source)


def _served(facts: StoreFacts) -> Point:
    """Whether a block that was put came back."""
    kind = _KINDS[facts.name]
    about = f"the {facts.name} store"
    if facts.settings:
        return Point(Outcome.WRONG, about, facts.settings, f"correct {kind.setting.partition('.')[0]}, or install it")
    if facts.refused:
        told = f"nobody answers at {facts.address}: {facts.refused}"
        remedy = f"is it running, and is {kind.setting} right? {kind.start}"
        return Point(Outcome.WRONG, about, told, remedy, kind.source)
    if facts.closed:
        return Point(Outcome.WRONG, about, f"it could not be joined: {facts.closed}", kind.start, kind.source)
    found, seconds = facts.found, f"{facts.seconds:.1f} s"
    if found.verdict is Verdict.SOUND:
        return Point(Outcome.WELL, about, f"a block was put, read back, compared and deleted in {seconds}")
    if found.verdict in _LIES:
        return Point(Outcome.WRONG, about, found.words, kind.lies, "a block was put and read back")
    if found.verdict is Verdict.UNKNOWN:
        told = f"nothing could be put, so it was not tried whether it serves: {found.detail or found.words}"
        return Point(Outcome.BEWARE, about, told, "make room; where agents lend the memory, start them first")
    return Point(Outcome.WRONG, about, found.words, f"{kind.start}; its log says why", kind.source)


def _agents_tier(facts: StoreFacts) -> Point:
    """What the node's agent itself thinks of it."""
    tier, about = facts.agent or {}, f"the agent's {facts.name} tier"
    if tier.get("state", "ready") != "ready":
        told = "; ".join(tier.get("notes", ())) or str(tier["state"])
        return Point(Outcome.WRONG, about, f"the agent serves without it: {told}", "kveik logs agent")
    if tier.get("fence"):
        return Point(Outcome.WRONG, about, f"fenced by its probe: {tier['fence']}", "kveik stats shows its outages")
    if tier.get("breaker", "closed") != "closed":
        told = f"left out after failures (breaker {tier['breaker']})"
        return Point(Outcome.WRONG, about, told, "kveik stats shows its outages and what they cost")
    if tier.get("read_only"):
        return Point(Outcome.BEWARE, about, "it cannot be written", "make room, or let the agent write there")
    return Point(Outcome.WELL, about, "on")
