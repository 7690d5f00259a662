"""The check ``addresses``: whether what is configured can be reached from other nodes, and belongs to this machine."""

from collections.abc import Iterator, Mapping, Sequence

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_described import DescribedFleet, host_of, is_loopback
from kveik.doctor.network_cards import Card, cards_named, look_at_cards, own_addresses

#: Variables that name this node's address, and those that name its cards (true: by whole names).
_ADDRESSES = ("VLLM_HOST_IP", "HCCL_IF_IP")
_CARDS = {
    "GLOO_SOCKET_IFNAME": True,
    "TP_SOCKET_IFNAME": True,
    "HCCL_SOCKET_IFNAME": False,
    "NCCL_SOCKET_IFNAME": False,
}
_WILDCARDS = ("", "0.0.0.0", "::")  # noqa: S104 (compared, not bound to)
_SHOW = "ip -brief address"


def check_addresses(context: Context) -> Verdict:
    """Compare the configuration with this machine. Raises :class:`DoctorError` where no fleet was named."""
    described = fleet_of(context).described
    if described.config is None:
        told = "no configuration was given, so addresses in settings cannot be seen"
        return Verdict([], [Point(Outcome.UNKNOWN, "addresses", told, "--config FILE")])
    cards = look_at_cards()
    found = [f"{card.name} {', '.join(card.addresses) or 'no address'}" for card in cards.values()]
    points = [*judge_reach(described), *judge_own(described, cards, context.environ)]
    told = "one node, and nothing of it has to be reached from others"
    return Verdict([described.source, *found], points or [Point(Outcome.WELL, "addresses", told)])


def judge_reach(described: DescribedFleet) -> Iterator[Point]:
    """Of several nodes: what others have to reach and cannot, since it is each machine's own loopback."""
    if len(described.nodes) < 2:
        return
    seen: dict[str, str] = {}
    for node in described.nodes:
        setting = f"address of node {node.name}"
        if is_loopback(node.address):
            yield _unreachable(setting, node.address, "its address in [[nodes]] is one that the other nodes reach")
        elif node.address in seen:
            told = f"{node.address} is that of {seen[node.address]}, too"
            yield Point(Outcome.WRONG, setting, told, "one address for each node, in [[nodes]]")
        else:
            yield Point(Outcome.WELL, setting, node.address)
        seen.setdefault(node.address, node.name)
    for setting, address, remedy in _shared_addresses(described):
        if is_loopback(host_of(address)) or address.startswith("/"):
            yield _unreachable(setting, address, remedy)
        else:
            yield Point(Outcome.WELL, setting, address)


def judge_own(described: DescribedFleet, cards: Mapping[str, Card], environ: Mapping[str, str]) -> Iterator[Point]:
    """Whether this node's address, and what engines are told of addresses and cards, are this machine's."""
    own = own_addresses(cards)
    address = described.address
    if len(described.nodes) > 1 and address:
        yield _owned(f"address of node {described.node}", address, own, "is this the right node (--node)?")
    for engine in described.here:
        values = {**environ, **engine.environment}
        for name in _ADDRESSES:
            if value := values.get(name, ""):
                yield _owned(f"{name} of {engine.name}", value, own, f"the address of this node; {_SHOW} lists them")
        for name, exact in _CARDS.items():
            if value := values.get(name, ""):
                yield _card(f"{name} of {engine.name}", value, cards, _wanted(described, values), exact=exact)


def _unreachable(setting: str, address: str, remedy: str) -> Point:
    told = f"{address} is each node's own: every node finds itself there and nobody else"
    return Point(Outcome.WRONG, setting, told, remedy, "the field's isolated pools: one meta service on each loopback")


def _shared_addresses(described: DescribedFleet) -> Iterator[tuple[str, str, str]]:
    """What all nodes share, by setting: its address, and what to do."""
    stores = described.stores
    one = "the address of the one that all nodes share"
    if stores.mooncake.master:
        yield "mooncake.master", stores.mooncake.master, one
        if "://" in stores.mooncake.metadata:
            yield "mooncake.metadata", stores.mooncake.metadata, one
        if stores.mooncake.host:
            yield "mooncake.host", stores.mooncake.host, "this node's address as other nodes reach it"
    if stores.redis.address:
        yield "redis.address", stores.redis.address, one
    if stores.yuanrong.worker:
        yield "yuanrong.worker", stores.yuanrong.worker, "the address that dscli was started with, not loopback"
    for url in filter(None, (part.strip() for part in described.watchdog.routers.split(","))):
        yield "watchdog.routers", url, "the addresses of routers that all nodes reach"


def _owned(about: str, value: str, own: frozenset[str], remedy: str) -> Point:
    if value in own or value in _WILDCARDS:
        return Point(Outcome.WELL, about, value)
    return Point(Outcome.WRONG, about, f"{value} is none of this machine's addresses", remedy, _SHOW)


def _wanted(described: DescribedFleet, values: Mapping[str, str]) -> Sequence[str]:
    """Addresses that the card should have."""
    told = [values.get(name, "") for name in _ADDRESSES]
    node = described.address if len(described.nodes) > 1 else ""
    return [address for address in dict.fromkeys([*told, node]) if address and not is_loopback(address)]


def _card(about: str, value: str, cards: Mapping[str, Card], wanted: Sequence[str], *, exact: bool) -> Point:
    chosen = cards_named(value, list(cards), exact=exact)
    if not chosen:
        told = f"{value!r} names no network card of this machine, which has {', '.join(cards) or 'none'}"
        return Point(Outcome.WRONG, about, told, "the card that has this node's address; nodes may differ in it", _SHOW)
    if down := [name for name in chosen if not cards[name].up]:
        return Point(Outcome.WRONG, about, f"{', '.join(down)} is down", f"ip link set {down[0]} up", _SHOW)
    has = {address for name in chosen for address in cards[name].addresses}
    if missing := [address for address in wanted if address not in has]:
        told = f"{', '.join(chosen)} does not have {', '.join(missing)}, which the engine is told as its address"
        return Point(Outcome.WRONG, about, told, "name the card that owns the address", _SHOW)
    return Point(Outcome.WELL, about, f"{', '.join(chosen)} is there")
