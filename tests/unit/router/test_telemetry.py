import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kveik.config import RouterSettings
from kveik.fleet.announcement import EngineAnnouncement
from kveik.router.engines import EngineView
from kveik.router.gate import Gate
from kveik.router.records import RequestRecord
from kveik.router.telemetry import Telemetry


class Index:
    def index_document(self) -> Mapping[str, Any]:
        return {"entries": 3, "bytes": 96}


class Router:
    """What the metrics read of a router."""

    def __init__(self) -> None:
        self.gate = Gate(RouterSettings(concurrent_max=1), None, 0.0)
        self.engines = [EngineView(EngineAnnouncement(url="http://127.0.0.1:8000", engine_id="e"), 0, in_flight=2)]
        self.quarantine = ["one"]
        self.under_way = 3
        self.retries_refused = 4


def finished(telemetry: Telemetry) -> RequestRecord:
    record = RequestRecord("id", "POST", "/v1/completions", model="m", engine="e", reason="prefix", status=200)
    for listener in telemetry.listeners:
        listener(record)
    return record


def test_one_finished_request_reaches_metrics_usage_and_the_access_log(tmp_path: Path) -> None:
    log, usage = tmp_path / "access.log", tmp_path / "usage.sqlite"
    settings = RouterSettings(access_log=str(log), usage_file=str(usage))
    telemetry = Telemetry(settings, Index())
    finished(telemetry)
    router = Router()
    router.gate.enter(None, 0.0)
    router.gate.enter(None, 0.0)
    text = telemetry.scrape(router)().decode()
    telemetry.tick(100.0)
    telemetry.close()
    assert 'kveik_router_requests_total{engine="e",model="m",outcome="ok",status="2xx"} 1.0' in text
    shown = {
        "in_flight 2.0", "waiting 1.0", "prefix_index_blocks 3.0", "prefix_index_bytes 96.0",
        "quarantined_requests 1.0", 'engine_in_flight{engine="e"} 2.0', "retries_refused_total 4.0",
    }  # fmt: skip
    assert {f"kveik_router_{line}" for line in shown} <= set(text.splitlines())
    assert "process_cpu_seconds_total" in text
    assert "process_resident_memory_bytes" in text
    assert json.loads(log.read_text())["request_id"] == "id"
    assert telemetry.usage_document()["usage"][0]["requests"] == 1
    assert Telemetry(settings, Index()).usage_document()["usage"][0]["requests"] == 1


def test_nothing_is_written_before_its_time(tmp_path: Path) -> None:
    log = tmp_path / "access.log"
    telemetry = Telemetry(RouterSettings(access_log=str(log), telemetry_flush_s=10.0), Index())
    telemetry.tick(100.0)
    finished(telemetry)
    telemetry.tick(109.9)
    assert log.read_text() == ""
    telemetry.close()
    assert log.read_text().count("\n") == 1


def test_what_is_switched_off_does_not_listen() -> None:
    telemetry = Telemetry(RouterSettings(), Index())
    assert len(telemetry.listeners) == 2
    assert telemetry.tracing.begin(b"", finished(telemetry)) == b""
    telemetry.close()
