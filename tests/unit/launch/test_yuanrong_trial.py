"""What a trial of openYuanrong starts, with which settings."""

from dataclasses import replace
from pathlib import Path

import pytest

from kveik.engine.process import free_port
from kveik.errors import ConfigError
from kveik.launch.yuanrong_trial import (
    LEAST_MEMORY_BYTES,
    YuanrongTrial,
    etcd_command,
    etcd_program,
    fitting_memory,
    is_healthy,
    on_several_nodes,
    section,
    why_not,
    worker_command,
    worker_environment,
    worker_flags,
)

MIB = 1 << 20
TRIAL = YuanrongTrial(Path("/run/yr"), 31501, 2379, 2380, 512 * MIB)
DEFAULTS: dict[str, object] = {
    "worker_address": {"value": "127.0.0.1:1", "description": "Address"},
    "etcd_address": {"value": ""},
    "shared_memory_size_mb": {"value": "1024"},
    "node_timeout_s": {"value": "60"},
    "node_dead_timeout_s": {"value": "300"},
    "minloglevel": {"value": "0"},
    "ready_check_path": {"value": "./datasystem/probe/ready"},
    "unix_domain_socket_dir": {"value": "./datasystem/uds"},
    "log_dir": "./datasystem/logs",
    "spill_directory": {"value": ""},
    "rpc_thread_num": {"value": 16},
}


def test_the_worker_runs_with_its_package_s_defaults_but_for_what_is_ours() -> None:
    flags = worker_flags(DEFAULTS, TRIAL)
    assert flags["worker_address"] == "127.0.0.1:31501"
    assert flags["etcd_address"] == "127.0.0.1:2379"
    assert flags["shared_memory_size_mb"] == "512"
    assert flags["rpc_thread_num"] == "16"
    assert "spill_directory" not in flags


def test_dead_nodes_are_given_up_within_seconds_and_the_log_stays_small() -> None:
    flags = worker_flags(DEFAULTS, TRIAL)
    assert (flags["node_timeout_s"], flags["node_dead_timeout_s"], flags["minloglevel"]) == ("5", "10", "1")


def test_a_version_that_lacks_a_setting_is_not_given_it() -> None:
    assert "sc_thread_num" not in worker_flags(DEFAULTS, TRIAL)


def test_all_files_of_the_worker_lie_in_the_trial_s_folder() -> None:
    flags = worker_flags(DEFAULTS, TRIAL)
    assert flags["ready_check_path"] == str(TRIAL.ready_file) == "/run/yr/datasystem/probe/ready"
    assert flags["unix_domain_socket_dir"] == str(TRIAL.socket_folder)
    assert flags["log_dir"] == "/run/yr/datasystem/logs"


def test_commands_run_in_the_foreground_with_the_package_s_own_libraries() -> None:
    package = Path("/venv/yr/datasystem")
    assert worker_command(package, {"a": "1"}) == ["/venv/yr/datasystem/datasystem_worker", "--a=1"]
    assert worker_environment(package, {})["LD_LIBRARY_PATH"] == "/venv/yr/datasystem/lib"
    found = worker_environment(package, {"LD_LIBRARY_PATH": "/opt/lib", "HOME": "/root"})
    assert found == {"LD_LIBRARY_PATH": "/venv/yr/datasystem/lib:/opt/lib"}


def test_etcd_listens_on_loopback_and_nowhere_else() -> None:
    command = etcd_command("/usr/bin/etcd", TRIAL)
    assert command[0] == "/usr/bin/etcd"
    listening = [flag for flag in command if flag.startswith("--listen")]
    assert listening == ["--listen-client-urls=http://127.0.0.1:2379", "--listen-peer-urls=http://127.0.0.1:2380"]
    assert "0.0.0.0" not in " ".join(command)
    assert "--data-dir=/run/yr/etcd" in command


@pytest.mark.parametrize(("available_mib", "given_mib"), [(100, 256), (1024, 256), (4096, 1024), (500_001, 125_000)])
def test_the_worker_gets_a_quarter_of_the_free_memory(available_mib: int, given_mib: int) -> None:
    assert fitting_memory(available_mib * MIB) == given_mib * MIB


def test_a_folder_too_deep_for_sockets_and_too_little_memory_are_refused_in_words() -> None:
    assert why_not(TRIAL) == ""
    deep = replace(TRIAL, folder=Path("/" + "x" * 70))
    assert "choose a shorter one" in why_not(deep)
    assert f"at least {LEAST_MEMORY_BYTES}" in why_not(replace(TRIAL, memory_bytes=MIB))


def test_what_is_printed_can_be_pasted_and_says_how_several_nodes_do_it() -> None:
    assert section(TRIAL) == '[yuanrong]\nworker = "127.0.0.1:31501"\n'
    text = on_several_nodes(TRIAL)
    assert "one etcd for all of them" in text
    assert "--node_timeout_s 5" in text
    assert "--node_dead_timeout_s 10" in text
    assert "--shared_memory_size_mb 512" in text


def test_etcd_starts_before_the_worker_that_needs_it(tmp_path: Path) -> None:
    (tmp_path / "worker_config.json").write_text('{"worker_address": {"value": ""}}', encoding="utf8")
    etcd, worker = TRIAL.processes(tmp_path, "/usr/bin/etcd", {})
    assert (etcd.command[0], worker.command[0]) == ("/usr/bin/etcd", str(tmp_path / "datasystem_worker"))
    assert worker.environment == {"LD_LIBRARY_PATH": str(tmp_path / "lib")}
    assert not worker.ready()
    with pytest.raises(ConfigError, match="at least"):
        replace(TRIAL, memory_bytes=MIB).processes(tmp_path, "/usr/bin/etcd", {})


def test_what_an_earlier_trial_left_goes_and_its_logs_stay(tmp_path: Path) -> None:
    trial = replace(TRIAL, folder=tmp_path)
    for name in ("etcd", "datasystem/rocksdb", "datasystem/uds", "datasystem/logs", "datasystem/probe"):
        (tmp_path / name).mkdir(parents=True)
    trial.ready_file.touch()
    trial.clear()
    trial.clear()
    assert sorted(file.name for file in tmp_path.rglob("*")) == ["datasystem", "logs"]


def test_where_nobody_listens_etcd_is_not_healthy() -> None:
    assert not is_healthy(f"127.0.0.1:{free_port()}")


def test_a_missing_etcd_is_told_with_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="apt-get install etcd-server"):
        etcd_program()


def test_an_agent_is_pointed_to_the_worker() -> None:
    assert TRIAL.settings.worker == TRIAL.worker == "127.0.0.1:31501"
