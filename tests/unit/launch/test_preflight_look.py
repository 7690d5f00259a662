"""What is really there: ports, models, Pythons, locks, folders, etcd."""

import fcntl
import os
import socket
import sys
from pathlib import Path

import kveik
from kveik.engine.process import free_port
from kveik.launch.preflight import Needs, PortNeed
from kveik.launch.preflight_look import look


def needs(place: Path, **fields: object) -> Needs:
    return Needs(**{"folder": str(place / "state"), **fields})  # type: ignore[arg-type]


def test_a_free_port_is_fine_and_one_in_use_is_told_with_its_process(tmp_path: Path) -> None:
    free = free_port()
    with socket.create_server(("127.0.0.1", 0)) as listening:
        taken = listening.getsockname()[1]
        wanted = (PortNeed("a", "127.0.0.1", free), PortNeed("b", "127.0.0.1", taken), PortNeed("c", "127.0.0.1", 0))
        found = look(needs(tmp_path, ports=wanted))
        assert list(found.ports) == [("127.0.0.1", taken)]
        assert f"it is in use by process {os.getpid()} (" in found.ports["127.0.0.1", taken]
        assert look(needs(tmp_path, ports=wanted), ours={os.getpid()}).ports == {}


def test_an_address_of_another_machine_cannot_be_listened_on(tmp_path: Path) -> None:
    found = look(needs(tmp_path, ports=(PortNeed("a", "192.0.2.1", 8001),)))
    assert found.ports["192.0.2.1", 8001] == "this machine has no address 192.0.2.1; is this the right node?"


def test_models_are_looked_into(tmp_path: Path) -> None:
    good, bad = tmp_path / "good", tmp_path / "bad"
    for folder in (good, bad):
        folder.mkdir()
        (folder / "config.json").write_text("{}")
    (good / "model.safetensors").write_bytes(b"x" * 100)
    found = look(needs(tmp_path, models={str(good): ["a"], str(bad): ["b"], "": ["c"], "/nowhere": ["d"]}))
    assert set(found.models) == {str(bad), "", "/nowhere"}
    assert "has no weights" in found.models[str(bad)]
    assert "engine.model is empty" in found.models[""]
    assert found.weights_bytes == {str(good): 100}


def test_pythons_say_what_they_have(tmp_path: Path) -> None:
    failing = tmp_path / "failing"
    failing.write_text("#!/bin/sh\necho broken >&2\nexit 3\n")
    failing.chmod(0o755)
    silent = tmp_path / "silent"
    silent.write_text("#!/bin/sh\n")
    silent.chmod(0o755)
    wanted = {name: ["e"] for name in ("", sys.executable, "/no/python", str(failing), str(silent))}
    found = look(needs(tmp_path, pythons=wanted)).pythons
    assert found[""] == found[sys.executable]
    assert found[""].kveik == kveik.__version__
    assert found["/no/python"].trouble == "No such file or directory"
    assert found[str(failing)].trouble == "broken"
    assert found[str(silent)].trouble == "its answer is not understood"


def test_the_arena_is_measured_where_it_will_be(tmp_path: Path) -> None:
    arena = tmp_path / "a.arena"
    found = look(needs(tmp_path, arena=str(arena)))
    assert 0 < found.shared_bytes < 1 << 62
    assert not found.arena_is_there
    arena.touch()
    assert look(needs(tmp_path, arena=str(arena))).arena_is_there
    assert look(needs(tmp_path, arena="/nowhere/a.arena")).shared_bytes == 0


def test_the_folder_is_made_for_this_user_alone_or_its_trouble_is_told(tmp_path: Path) -> None:
    assert look(needs(tmp_path)).folder == ""
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o700
    (tmp_path / "file").touch()
    assert "cannot use the folder" in look(needs(tmp_path, folder=str(tmp_path / "file"))).folder


def test_a_lock_counts_only_while_somebody_holds_it(tmp_path: Path) -> None:
    path = str(tmp_path / "agent.sock")
    assert look(needs(tmp_path, agent_socket=path)).agent_lock == ""
    with open(f"{path}.lock", "w") as lock:
        assert look(needs(tmp_path, agent_socket=path)).agent_lock == ""
        fcntl.flock(lock, fcntl.LOCK_EX)
        assert look(needs(tmp_path, agent_socket=path)).agent_lock == f"another agent listens at {path}"


def test_an_etcd_that_is_not_there_or_badly_written_is_told(tmp_path: Path) -> None:
    assert "refused" in look(needs(tmp_path, registry=f"etcd://127.0.0.1:{free_port()}"), (), 0.5).registry
    assert look(needs(tmp_path, registry="etcd:/x")).registry
