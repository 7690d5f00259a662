"""The check ``etcd``: whether the etcd that a fleet shares is one cluster, whole and healthy.

Two nodes that each started an etcd of their own look healthy, each by itself; their cluster ids tell them apart.
"""

import http.client
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_described import host_of, is_loopback
from kveik.doctor.fleet_view import ANSWER_S, together

_SOURCE = "etcd's /v3/maintenance/status, /v3/maintenance/alarm and /v3/cluster/member/list"
_ONE = (
    "start one etcd cluster (one member, better three) and give its addresses to all nodes: ETCD_IP is the same "
    "address everywhere, not each node's own"
)


@dataclass(frozen=True, slots=True)
class EtcdMember:
    """What one endpoint told, or why it told nothing. ``members``: how many its cluster has."""

    endpoint: str
    trouble: str = ""
    cluster: str = ""
    version: str = ""
    leader: str = ""
    members: int = 0
    alarms: tuple[str, ...] = ()
    errors: tuple[str, ...] = field(default=())


def check_etcd(context: Context) -> Verdict:
    """Ask all endpoints. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    described = fleet_of(context).described
    if not described.etcds:
        told = "no etcd is configured: the fleet is kept by one router"
        return Verdict([], [Point(Outcome.WELL, "etcd", told)])
    endpoints = list(dict.fromkeys(one for listed in described.etcds.values() for one in listed))
    seen = {member.endpoint: member for member in together(look_at_etcd, endpoints)}
    evidence = [f"{who}: {', '.join(listed)}" for who, listed in described.etcds.items()]
    return Verdict(evidence, list(judge_etcd(described.etcds, seen, nodes=len(described.nodes))))


def judge_etcd(etcds: Mapping[str, Sequence[str]], seen: Mapping[str, EtcdMember], *, nodes: int) -> Iterator[Point]:
    """What is to be said of each member, and of all together."""
    yield from (_member(member) for member in seen.values())
    if nodes > 1:
        for who, endpoints in etcds.items():
            if local := [endpoint for endpoint in endpoints if is_loopback(host_of(endpoint))]:
                told = f"{who} uses {', '.join(local)}, which is another etcd on each of the {nodes} nodes"
                yield Point(Outcome.WRONG, who, told, _ONE)
    clusters: dict[str, list[str]] = {}
    for member in seen.values():
        if member.cluster:
            clusters.setdefault(member.cluster, []).append(member.endpoint)
    if len(clusters) > 1:
        each = "; ".join(f"{', '.join(endpoints)} is cluster {name}" for name, endpoints in clusters.items())
        users = ", ".join(etcds)
        told = f"not one etcd but {len(clusters)}: {each} (used by {users}): each knows only its own nodes"
        yield Point(Outcome.WRONG, "etcd", told, _ONE, _SOURCE)
    elif nodes > 1 and [member.members for member in seen.values() if member.cluster] == [1]:
        told = "one member for several nodes: when its machine fails, nobody can join, and stores lose their directory"
        yield Point(Outcome.BEWARE, "etcd", told, "three members, on three machines")


def _member(member: EtcdMember) -> Point:
    about = member.endpoint
    if member.trouble:
        remedy = f"start it, or correct the address; etcdctl --endpoints {about} endpoint health"
        return Point(Outcome.WRONG, about, f"it does not answer: {member.trouble}", remedy)
    if member.alarms or member.errors:
        told = f"it is not healthy: {', '.join((*member.alarms, *member.errors))}"
        return Point(Outcome.WRONG, about, told, "compact, defragment, and disarm the alarm (etcdctl alarm)", _SOURCE)
    if member.leader in {"", "0"}:
        told = "it has no leader: more than half of the members are not there, so nothing can be written"
        return Point(Outcome.WRONG, about, told, "start the other members", _SOURCE)
    told = f"etcd {member.version}, {member.members} member(s), with a leader"
    return Point(Outcome.WELL, about, told, source=_SOURCE)


def look_at_etcd(endpoint: str) -> EtcdMember:
    """Ask one endpoint, ``HOST:PORT``."""
    try:
        status = _ask(endpoint, "/v3/maintenance/status", {})
        alarms = _ask(endpoint, "/v3/maintenance/alarm", {"action": "GET"})
        members = _ask(endpoint, "/v3/cluster/member/list", {})
    except (OSError, http.client.HTTPException, ValueError) as error:
        return EtcdMember(endpoint, trouble=str(error) or type(error).__name__)
    return EtcdMember(
        endpoint,
        cluster=_hex(status.get("header", {}).get("cluster_id", "")),
        version=str(status.get("version", "")),
        leader=str(status.get("leader", "")),
        members=len(members.get("members", ())),
        alarms=tuple(str(alarm.get("alarm", "an alarm")) for alarm in alarms.get("alarms", ())),
        errors=tuple(map(str, status.get("errors", ()))),
    )


def _hex(number: str) -> str:
    """As etcdctl writes ids."""
    return f"{int(number):x}" if number.isdigit() else number


def _ask(endpoint: str, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
    """Raises OSError, HTTPException or ValueError for no answer, or none that is an object."""
    connection = http.client.HTTPConnection(endpoint, timeout=ANSWER_S)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        response = connection.getresponse()
        raw = response.read()
        if response.status != http.client.OK:
            raise http.client.HTTPException(f"HTTP {response.status}: {raw[:200]!r}")
        answer = json.loads(raw)
        if not isinstance(answer, dict):
            raise ValueError(f"no object: {raw[:200]!r}")
        return answer
    finally:
        connection.close()
