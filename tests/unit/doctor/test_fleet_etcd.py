"""One etcd, or several that look healthy each by itself."""

from collections.abc import Mapping, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

from kveik.doctor.check import Outcome
from kveik.doctor.fleet_described import DescribedFleet
from kveik.doctor.fleet_etcd import EtcdMember, check_etcd, judge_etcd, look_at_etcd
from kveik.engine.process import free_port
from tests.unit.doctor.paper_fleet import context_of


def member(endpoint: str, **given: object) -> EtcdMember:
    usual: dict[str, object] = {"cluster": "cdf8", "version": "3.5.0", "leader": "8e9e", "members": 3}
    return EtcdMember(endpoint, **{**usual, **given})  # type: ignore[arg-type]


def judged(etcds: Mapping[str, Sequence[str]], *members: EtcdMember, nodes: int = 1) -> dict[str, tuple[Outcome, str]]:
    points = judge_etcd(etcds, {one.endpoint: one for one in members}, nodes=nodes)
    return {point.about: (point.outcome, point.told) for point in points}


def test_members_of_one_cluster_are_well() -> None:
    found = judged({"router.registry": ["a:1", "b:1"]}, member("a:1"), member("b:1"), nodes=2)
    assert [outcome for outcome, _ in found.values()] == [Outcome.WELL, Outcome.WELL]


def test_two_clusters_in_two_nodes_files_are_wrong() -> None:
    etcds = {"router.registry": ["a:1"], "router.registry of b.toml": ["b:1"]}
    outcome, told = judged(etcds, member("a:1"), member("b:1", cluster="ab12"), nodes=2)["etcd"]
    assert outcome is Outcome.WRONG
    assert "not one etcd but 2: a:1 is cluster cdf8; b:1 is cluster ab12" in told


def test_loopback_is_another_etcd_on_each_node() -> None:
    found = judged({"router.registry": ["127.0.0.1:2379"]}, member("127.0.0.1:2379"), nodes=2)
    assert found["router.registry"][0] is Outcome.WRONG
    assert (
        judged({"router.registry": ["127.0.0.1:2379"]}, member("127.0.0.1:2379"))["127.0.0.1:2379"][0] is Outcome.WELL
    )


def test_a_member_that_is_silent_sick_or_without_a_leader_is_wrong() -> None:
    found = judged(
        {"router.registry": ["a:1", "b:1", "c:1"]},
        EtcdMember("a:1", trouble="connection refused"),
        member("b:1", alarms=("NOSPACE",)),
        member("c:1", leader="0"),
    )
    assert {outcome for outcome, _ in found.values()} == {Outcome.WRONG}
    assert "NOSPACE" in found["b:1"][1]
    assert "no leader" in found["c:1"][1]


def test_one_member_for_several_nodes_is_to_be_known() -> None:
    assert judged({"r": ["a:1"]}, member("a:1", members=1), nodes=2)["etcd"][0] is Outcome.BEWARE
    assert "etcd" not in judged({"r": ["a:1"]}, member("a:1", members=1))


def test_nobody_listens_at_the_address() -> None:
    assert "refused" in look_at_etcd(f"127.0.0.1:{free_port()}").trouble
    assert look_at_etcd("127.0.0.1:nonsense").trouble


def test_a_fleet_without_etcd_is_well_and_says_so() -> None:
    verdict = check_etcd(context_of(described=DescribedFleet("paper")))
    assert verdict.outcome is Outcome.WELL
    assert "no etcd is configured" in verdict.points[0].told


def test_the_check_asks_each_endpoint_once() -> None:
    endpoint = f"127.0.0.1:{free_port()}"
    described = DescribedFleet("paper", etcds={"a": (endpoint,), "b": (endpoint,)})
    verdict = check_etcd(context_of(described=described))
    assert [point.about for point in verdict.points] == [endpoint]
    assert verdict.evidence == [f"a: {endpoint}", f"b: {endpoint}"]


class NoEtcd(BaseHTTPRequestHandler):
    """Something else that listens there."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        self.send_response(404 if "status" in self.path else 200)
        self.send_header("Content-Length", "2")
        self.end_headers()
        self.wfile.write(b"[]")

    def log_message(self, format: str, *args: object) -> None:
        pass


def test_something_else_at_the_address_is_no_etcd() -> None:
    server = HTTPServer(("127.0.0.1", 0), NoEtcd)
    thread = Thread(target=server.serve_forever)
    thread.start()
    try:
        trouble = look_at_etcd(f"127.0.0.1:{server.server_port}").trouble
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
    assert trouble == "HTTP 404: b'[]'"
