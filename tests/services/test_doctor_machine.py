"""The doctor in a machine of its own: another /dev/shm, other network cards, and a limit on locked memory."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.fleets import SimFleet

SEPARATE = ["unshare", "--net", "--mount"]
MOONCAKE = '[mooncake]\nmaster = "10.9.8.7:50051"\nprotocol = "rdma"\n'
NODES = '[[nodes]]\nname = "n0"\naddress = "10.9.8.7"\n[[nodes]]\nname = "n1"\naddress = "10.9.8.8"\n'


def can_be_separate() -> bool:
    """Whether namespaces can be made here, and cards in them."""
    if shutil.which("unshare") is None or shutil.which("ip") is None:
        return False
    command = [*SEPARATE, "ip", "link", "add", "bond9", "type", "bridge"]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


NEEDS_NAMESPACES = pytest.mark.skipif(not can_be_separate(), reason="no namespaces with network cards can be made here")
NEEDS_MOUNTS = pytest.mark.skipif(
    shutil.which("unshare") is None
    or subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False).returncode != 0,
    reason="no mount namespaces can be made here",
)


def fleet(folder: Path, *, arena: str, tables: str = "", engine: str = "simulated = true") -> SimFleet:
    """A fleet whose engines share a cache, with its arena there; nothing of it runs."""
    found = SimFleet(folder, engine=f"{engine}\nshared_cache = true", tables=tables)
    text = found.config.read_text().replace(f'arena = "{folder}/arena"', f'arena = "{arena}"')
    found.config.write_text(text.replace("[fleet]\n", '[fleet]\nnode = "n0"\n', 1) if "[[nodes]]" in tables else text)
    if "[[nodes]]" in tables:
        found.config.write_text(found.config.read_text().replace("[[launch]]\n", '[[launch]]\nnode = "n0"\n'))
    return found


def looked(fleet: SimFleet, check: str, script: str = "", *before: str) -> list[dict[str, Any]]:
    """The points of a check, in a shell that first runs ``script``, behind the command ``before``."""
    shell = f'{script}\nexec "$@"'
    command = [*before, "sh", "-ec", shell, "sh", *fleet.command("doctor", check, "--json")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in {0, 1}, f"{done.stdout}\n{done.stderr}"
    (answer,) = json.loads(done.stdout)
    assert (answer["outcome"] == "wrong") == (done.returncode == 1)
    points: list[dict[str, Any]] = answer["points"]
    return points


def outcomes(points: list[dict[str, Any]]) -> dict[str, str]:
    return {point["about"]: point["outcome"] for point in points}


@NEEDS_MOUNTS
def test_a_container_with_little_shared_memory_is_found(tmp_path: Path) -> None:
    small = "mount -t tmpfs -o size=8m tmpfs /dev/shm"
    sims = fleet(tmp_path, arena=f"/dev/shm/kveik-doctor-{os.getpid()}.arena")
    assert outcomes(looked(sims, "memory"))["arena"] == "well"
    (arena, *_) = looked(sims, "memory", small, "unshare", "--mount")
    assert (arena["about"], arena["outcome"]) == ("arena", "wrong")
    assert "16.0 MiB are wanted, and its file system has 8.0 MiB in all" in arena["told"]
    assert "--shm-size" in arena["remedy"]


def test_a_limit_on_locked_memory_is_found_where_the_transport_locks(tmp_path: Path) -> None:
    locking = fleet(tmp_path, arena=str(tmp_path / "arena"), tables=MOONCAKE)
    limited = outcomes(looked(locking, "memory", "ulimit -l 64"))
    assert limited["locked memory"] == "wrong"
    tcp = fleet(tmp_path, arena=str(tmp_path / "arena"), tables=MOONCAKE.replace("rdma", "tcp"))
    assert "locked memory" not in outcomes(looked(tcp, "memory", "ulimit -l 64"))


CARD = "ip link set lo up; ip link add bond9 type bridge; ip addr add 10.9.8.7/24 dev bond9; ip link set bond9 up"
ENGINE = 'simulated = true\nenvironment = "HCCL_IF_IP=10.9.8.7 GLOO_SOCKET_IFNAME=bond9"'


@NEEDS_NAMESPACES
def test_a_card_that_owns_the_nodes_address_is_well(tmp_path: Path) -> None:
    nodes = fleet(tmp_path, arena=str(tmp_path / "arena"), tables=NODES, engine=ENGINE)
    points = looked(nodes, "addresses", CARD, *SEPARATE)
    assert set(outcomes(points).values()) == {"well"}, points
    assert "GLOO_SOCKET_IFNAME of engine-1" in outcomes(points)


@NEEDS_NAMESPACES
@pytest.mark.parametrize(
    ("script", "about", "told"),
    [
        (CARD.replace("10.9.8.7", "10.9.8.9"), "address of node n0", "none of this machine's addresses"),
        (CARD.replace("bond9", "enp6"), "GLOO_SOCKET_IFNAME of engine-1", "names no network card of this machine"),
        (CARD.replace("link set bond9 up", "link set bond9 down"), "GLOO_SOCKET_IFNAME of engine-1", "bond9 is down"),
        (
            CARD.replace("dev bond9", "dev lo"), "GLOO_SOCKET_IFNAME of engine-1",
            "bond9 does not have 10.9.8.7, which the engine is told as its address",
        ),
    ],
    ids=["another address", "another card", "a card that is down", "a card without the address"],
)  # fmt: skip
def test_a_card_that_does_not_is_wrong(tmp_path: Path, script: str, about: str, told: str) -> None:
    nodes = fleet(tmp_path, arena=str(tmp_path / "arena"), tables=NODES, engine=ENGINE)
    found = {point["about"]: point for point in looked(nodes, "addresses", script, *SEPARATE)}
    assert found[about]["outcome"] == "wrong", found
    assert told in found[about]["told"]


def test_devices_that_this_machine_does_not_have_are_found(tmp_path: Path) -> None:
    sims = fleet(tmp_path, arena=str(tmp_path / "arena"), engine="simulated = true")
    assert set(outcomes(looked(sims, "devices")).values()) == {"well"}
    text = sims.config.read_text()
    cores = max(os.sched_getaffinity(0)) + 1
    sims.config.write_text(
        text.replace('name = "engine-1"\n', f'name = "engine-1"\ncores = "0-{cores}"\ndevices = "63"\n')
    )
    found = outcomes(looked(sims, "devices"))
    assert (found["cores of engine-1"], found["devices of engine-1"]) == ("wrong", "wrong")


def test_huge_pages_that_nobody_reserved_are_found_where_somebody_asks_for_them(tmp_path: Path) -> None:
    plain = fleet(tmp_path, arena=str(tmp_path / "arena"))
    assert outcomes(looked(plain, "huge-pages")) == {"huge pages": "well"}
    reserved = int(Path("/proc/sys/vm/nr_hugepages").read_text(encoding="utf8"))
    asking = plain.config.read_text().replace(
        "shared_cache = true", 'shared_cache = true\nenvironment = "DS_H2D_MEMCPY_POLICY=huge_ffts"'
    )
    plain.config.write_text(asking)
    found = outcomes(looked(plain, "huge-pages"))
    expected = "well" if reserved else "wrong"
    assert found == {f"DS_H2D_MEMCPY_POLICY=huge_ffts of engine-{number}": expected for number in (1, 2)}


def test_variables_of_engines_are_looked_at_before_they_start(tmp_path: Path) -> None:
    sims = fleet(tmp_path, arena=str(tmp_path / "arena"), engine='simulated = true\nenvironment = "VLLM_USE_V1=1"')
    points = {point["about"]: point for point in looked(sims, "environment")}
    assert points["VLLM_USE_V1 of engine-1"]["outcome"] == "wrong"
    assert "nothing reads it any more" in points["VLLM_USE_V1 of engine-2"]["told"]
