"""What is started to try Mooncake on one machine, without starting it."""

import tomllib
from dataclasses import replace

import pytest

from kveik.config import load_stores
from kveik.errors import ConfigError
from kveik.launch import mooncake_trial
from kveik.launch.mooncake_trial import MooncakeTrial, for_real, program

TRIAL = MooncakeTrial(memory_bytes=2 << 30, master_port=1, http_port=2, metadata_port=3, lender_port=4)


@pytest.fixture(autouse=True)
def _programs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mooncake_trial, "program", lambda name: f"/bin/{name}")


def test_a_master_comes_first_and_then_a_process_that_lends_memory_and_all_on_loopback() -> None:
    master, lender = TRIAL.processes()

    assert master.command[0] == "/bin/mooncake_master"
    assert {"--rpc_port=1", "--rpc_address=127.0.0.1", "--metrics_port=2"} <= set(master.command)
    assert lender.command[0] == "/bin/mooncake_client"
    assert "--global_segment_size=2048MB" in lender.command
    assert "--metadata_server=P2PHANDSHAKE" in lender.command
    assert not any("0.0.0.0" in word for word in (*master.command, *lender.command))


def test_the_metadata_service_is_started_only_on_demand() -> None:
    assert not any("metadata" in word for word in TRIAL.processes()[0].command)

    master, lender = replace(TRIAL, metadata=True).processes()

    assert "--http_metadata_server_port=3" in master.command
    assert "--metadata_server=http://127.0.0.1:3/metadata" in lender.command


@pytest.mark.parametrize("metadata", [False, True])
def test_the_section_that_is_printed_is_the_settings_that_were_proved(metadata: bool, tmp_path: object) -> None:
    trial = replace(TRIAL, metadata=metadata)
    written = tomllib.loads(trial.section())["mooncake"]

    for name, value in written.items():
        assert getattr(trial.settings, name) == value
    assert trial.settings == replace(load_stores(environ={}).mooncake, **written)


def test_how_it_is_done_for_real_names_the_other_networks() -> None:
    told = "\n".join(for_real())

    assert "rdma" in told
    assert "Ascend" in told


def test_a_program_that_is_missing_is_said_with_its_packages() -> None:
    with pytest.raises(ConfigError, match="no no_such_program here; install mooncake-transfer-engine-non-cuda"):
        program("no_such_program")
