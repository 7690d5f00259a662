"""A fleet as demonstrations and measurements start it, with simulated engines: chosen, killed, healed, ended."""

import json
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.bench.fleet import FleetPlan, RunningFleet, toml
from kveik.engine.client import CompletionRequest
from kveik.errors import ConfigError, SuperviseError
from kveik.launch.fleet_spec import read_fleet

QUICK = {"probe_period_s": 0.3, "probe_deadline_s": 5.0, "good_probes": 1, "restart_pause_s": 0.1}


@pytest.fixture
def plan(tmp_path: Path) -> FleetPlan:
    model = tmp_path / "model"
    model.mkdir()
    shape = {"num_attention_heads": 2, "hidden_size": 16, "num_hidden_layers": 2, "model_type": "llama"}
    (model / "config.json").write_text(json.dumps(shape))
    return FleetPlan(model=model, engine_python="no-such-python", folder=tmp_path / "f", watchdog=QUICK, simulated=True)


@pytest.fixture
def fleet(plan: FleetPlan) -> Iterator[RunningFleet]:
    with RunningFleet(plan, lambda _: None) as fleet:
        yield fleet


def test_its_file_reads_back_as_a_fleet(plan: FleetPlan, tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(toml(plan.tables(8, [1000, 1001, 1002], [4, 5])))
    spec = read_fleet(file, {})
    assert [(engine.name, engine.entry.port, engine.entry.cores) for engine in spec.engines] == [
        ("engine-1", 1001, "4"),
        ("engine-2", 1002, "5"),
    ]
    assert spec.engines[0].settings.kv_cache_bytes == 16384 * 8


def test_a_deep_folder_keeps_its_sockets_where_paths_are_short_enough(tmp_path: Path) -> None:
    deep = FleetPlan(model=tmp_path, engine_python="p", folder=tmp_path / ("deep" * 20))
    assert len(str(deep.state)) < 64
    assert deep.state != FleetPlan(model=tmp_path, engine_python="p", folder=tmp_path / ("other" * 20)).state
    assert FleetPlan(model=tmp_path, engine_python="p", folder=Path("/f")).state == Path("/f/state")


def test_an_engines_python_that_is_none_is_told_before_anything_starts(plan: FleetPlan, tmp_path: Path) -> None:
    real = FleetPlan(model=plan.model, engine_python="no-such-python", folder=tmp_path / "g")
    with pytest.raises(ConfigError, match="no-such-python"), RunningFleet(real, lambda _: None):
        pass
    assert not (tmp_path / "g").exists()


def test_a_killed_engine_is_healed_while_clients_ask_and_nothing_stays_behind(fleet: RunningFleet) -> None:
    service = fleet.service()
    service.through(service.second).complete(CompletionRequest((1, 2, 3), 2), service.second.model)
    outage = service.lose(service.first)
    assert outage.tally.lost == []
    assert len(outage.tally.asked) >= 8
    parts = {part.name: part for part in fleet.control.status().processes}
    assert {"agent", "engine-1", "engine-2", "router", "watchdog"} <= parts.keys()
    pids = [pid for part in parts.values() for pid in part.pids]
    fleet.__exit__(None, None, None)
    assert not any(psutil.pid_exists(pid) for pid in pids)
    with pytest.raises(SuperviseError):
        fleet.control.status()
