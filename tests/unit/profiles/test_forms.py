"""The three forms are what shell, compose and systemd take, and say the same."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kveik.errors import ConfigError
from kveik.profiles.line_reading import serve_lines
from kveik.profiles.node import INSIDE
from kveik.profiles.nodes import nodes
from kveik.profiles.wish import Given, wish
from kveik.profiles.written import as_text, launch_files, write
from tests.launches import smallest

SHELLCHECK = Path(sys.executable).parent / "shellcheck"
FAST = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
TWO = Given(nodes=2, addresses=("10.0.0.1", "10.0.0.2"))


def files(
    form: str, hardware: str = "a2", model: str = "glm-5", tier: str = "yuanrong", given: Given = TWO
) -> dict[str, str]:
    return launch_files(wish(hardware, model, tier, given), form)


@pytest.mark.slow
@pytest.mark.skipif(not SHELLCHECK.exists(), reason="no shellcheck in this environment: make dev")
@pytest.mark.long
def test_shellcheck_finds_nothing_in_any_script(tmp_path: Path) -> None:
    paths = []
    for number, one in enumerate(smallest()):
        scripts = {name: text for name, text in launch_files(one, "shell").items() if name.endswith(".sh")}
        # Nodes between the first and the last differ from the last in addresses and ranks only.
        for name in (name for name in scripts if name.startswith(("node-0/", f"node-{one.nodes - 1}/"))):
            path = tmp_path / f"{number}-{name.replace('/', '-')}"
            path.write_text(scripts[name])
            paths.append(str(path))
    done = subprocess.run([SHELLCHECK, *paths], capture_output=True, text=True, check=False)
    assert (done.stdout, done.returncode) == ("", 0)


def test_a_script_starts_the_engine_with_the_words_of_its_process() -> None:
    given = Given(model_folder="/models/it's $HOME `x`", served='a"b', shared_folder="/mnt/k v")
    wanted = wish("cuda", "qwen3-32b", "kveik", given)
    (node,) = nodes(wanted)
    engines = [process for process in node.processes if process.command[0] == "vllm"]
    lines = serve_lines(launch_files(wanted, "shell")["node-0/start.sh"])
    assert [["vllm", "serve", *line.arguments] for line in lines] == [process.words for process in engines]


def test_a_value_never_becomes_code(tmp_path: Path) -> None:
    """The script is run with a docker that only writes down its words."""
    hostile = f"{tmp_path}/models/$(touch {tmp_path}/ran)'\";touch {tmp_path}/ran;"
    Path(hostile).mkdir(parents=True)
    (tmp_path / "bin").mkdir()
    for name, body in {
        "docker": '[ "$1" = run ] && printf "%s\\n" "$@" >>"$OUT"; [ "$1" = inspect ] && echo true; exit 0',
        "curl": "exit 0",
    }.items():
        program = tmp_path / "bin" / name
        program.write_text(f"#!/bin/sh\n{body}\n")
        program.chmod(0o755)
    write(files("shell", "cuda", "llama-3.1-8b", "none", Given(model_folder=hostile)), tmp_path / "out", force=False)
    out = tmp_path / "words"
    environment = {"PATH": f"{tmp_path}/bin:{os.environ['PATH']}", "OUT": str(out)}
    done = subprocess.run(
        ["bash", tmp_path / "out/node-0/start.sh"], capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert hostile in out.read_text().splitlines()
    assert not (tmp_path / "ran").exists()


def test_a_script_stops_at_what_is_not_there(tmp_path: Path) -> None:
    write(files("shell", given=Given(nodes=2)), tmp_path, force=False)
    done = subprocess.run(["bash", tmp_path / "node-1/start.sh"], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "192.0.2.12 is a placeholder" in done.stderr
    write(files("shell", given=Given()), tmp_path / "one", force=False)
    done = subprocess.run(["bash", tmp_path / "one/node-0/start.sh"], capture_output=True, text=True, check=False)
    assert "/dev/davinci0 is not there, or is no device" in done.stderr


def service(name: str, node: int = 0, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(files("compose", **more)[f"node-{node}/compose.yaml"])["services"][name]
    return found


def test_compose_says_the_same() -> None:
    wanted = wish("a2", "glm-5", "yuanrong", TWO)
    for node in nodes(wanted):
        document = yaml.safe_load(launch_files(wanted, "compose")[f"node-{node.number}/compose.yaml"])
        assert list(document["services"]) == [process.name for process in node.processes]
        for process in node.processes:
            said = document["services"][process.name]
            assert [word.replace("$$", "$") for word in said["command"]] == process.container_words
            assert said["network_mode"] == "host"
        assert document["configs"]["yuanrong.json"]["content"].strip() == node.files["yuanrong.json"].strip()


def test_compose_gives_engines_their_devices_and_no_one_else() -> None:
    assert len(service("engine")["devices"]) == 11
    assert "devices" not in service("etcd")
    assert service("engine")["build"] == {"context": ".", "dockerfile": "Dockerfile"}
    cuda = service("engine", hardware="cuda", tier="none", given=Given())
    assert cuda["deploy"]["resources"]["reservations"]["devices"][0]["driver"] == "nvidia"
    assert cuda["ulimits"] == {"memlock": -1}


def test_all_forms_of_all_launches_can_be_written() -> None:
    for one in smallest():
        for name, text in launch_files(one, "compose").items():
            assert name.endswith("Dockerfile") or yaml.load(text, FAST)["services"]
        assert launch_files(one, "systemd")


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="no systemd-analyze here: apt-get install systemd")
@pytest.mark.parametrize("hardware", ["a2", "cpu"])
def test_systemd_takes_the_units(hardware: str, tmp_path: Path) -> None:
    given = TWO if hardware == "a2" else Given()
    model, tier = ("glm-5", "yuanrong") if hardware == "a2" else ("smollm2-135m", "kveik")
    units = {}
    for name, text in files("systemd", hardware, model, tier, given).items():
        if name.startswith("node-0/etc/systemd/"):
            path = tmp_path / Path(name).name
            # Programs and units that this machine has, in place of docker's.
            here = text.replace("/usr/bin/docker", "/bin/sh").replace("docker.service", "multi-user.target")
            path.write_text(here)
            units[name] = path
    done = subprocess.run(["systemd-analyze", "verify", *units.values()], capture_output=True, text=True, check=False)
    assert [line for line in done.stderr.splitlines() if "kveik" in line] == []


def test_systemd_finds_its_files_where_they_are_written() -> None:
    found = files("systemd")
    assert f"node-0{INSIDE}/yuanrong.json" in found
    unit = found["node-0/etc/systemd/system/kveik-launch-engine.service"]
    assert f"--volume={INSIDE}/yuanrong.json:{INSIDE}/yuanrong.json:ro" in unit


def test_files_that_differ_are_not_replaced_unasked(tmp_path: Path) -> None:
    written = write(files("shell"), tmp_path, force=False)
    assert os.access(tmp_path / "node-0/start.sh", os.X_OK)
    assert write(files("shell"), tmp_path, force=False) == written
    (tmp_path / "node-0/start.sh").write_text("mine")
    with pytest.raises(ConfigError, match=r"start\.sh is there and differs"):
        write(files("shell"), tmp_path, force=False)
    assert (tmp_path / "node-0/start.sh").read_text() == "mine"
    write(files("shell"), tmp_path, force=True)
    assert (tmp_path / "node-0/start.sh").read_text() != "mine"


def test_a_form_that_there_is_not_is_told() -> None:
    with pytest.raises(ConfigError, match="expected one of shell, compose, systemd"):
        files("yaml")


def test_printed_files_are_named() -> None:
    assert as_text({"a/b": "x\n", "c": "y\n"}) == "# file: a/b\nx\n\n# file: c\ny\n"
