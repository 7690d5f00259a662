"""How Mooncake's library is set up, without the library."""

import pytest

from kveik.config import MooncakeSettings
from kveik.errors import ConfigError, StoreError
from kveik.store import mooncake_library
from kveik.store.mooncake_library import address_of_master, environment, host_facing, plan_of

SETTINGS = MooncakeSettings(master="10.0.0.1:50051", protocol="rdma", device="mlx5_0", replicas=2, soft_pin=True)


@pytest.mark.parametrize("master", ["", "host", "host:", ":1", "host:0", "host:65536", "host:x"])
def test_a_master_that_is_no_address_is_refused_in_words(master: str) -> None:
    with pytest.raises(ConfigError, match=r"mooncake\.master is .*expected HOST:PORT"):
        address_of_master(master)


def test_a_master_has_a_host_and_a_port_also_with_six() -> None:
    assert address_of_master("10.0.0.1:50051") == ("10.0.0.1", 50051)
    assert address_of_master("[::1]:50051") == ("::1", 50051)


def test_a_node_is_known_by_the_address_from_which_it_reaches_the_master() -> None:
    assert host_facing("127.0.0.1:50051") == "127.0.0.1"


def test_a_master_that_no_way_leads_to_is_a_store_that_cannot_be_opened() -> None:
    with pytest.raises(StoreError, match="cannot be reached"):
        host_facing("no-such-host.invalid:50051")


def test_the_librarys_waits_are_shortened_unless_somebody_set_them() -> None:
    added = environment("10.0.0.7", {"MC_RPC_TIMEOUT_MS": "250"})

    assert added["MC_TCP_STATUS_TIMEOUT_SEC"] == "3"
    assert added["MC_TCP_BIND_ADDRESS"] == "10.0.0.7"
    assert "MC_RPC_TIMEOUT_MS" not in added


def test_the_librarys_log_is_seen_by_whoever_chose_how_much_of_it() -> None:
    assert not plan_of(SETTINGS, "10.0.0.7", {}).talkative
    assert plan_of(SETTINGS, "10.0.0.7", {"MC_LOG_LEVEL": "INFO"}).talkative


def test_protocol_devices_metadata_copies_and_pins_come_from_the_settings() -> None:
    plan = plan_of(SETTINGS, "10.0.0.7", {}, threads=3)

    assert plan.setup == (
        "10.0.0.7",
        "P2PHANDSHAKE",
        0,
        mooncake_library.LOCAL_BUFFER_BYTES,
        "rdma",
        "mlx5_0",
        "10.0.0.1:50051",
    )
    assert (plan.threads, plan.replicas, plan.soft_pin) == (3, 2, True)


def test_a_process_that_lends_memory_makes_no_transfers() -> None:
    plan = plan_of(SETTINGS, "10.0.0.7", {}, lent_bytes=1 << 30)

    assert plan.setup[2] == 1 << 30
    assert plan.threads == 0


def test_without_the_package_the_start_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)

    with pytest.raises(ConfigError, match="install mooncake-transfer-engine-non-cuda"):
        mooncake_library.demand_library()
