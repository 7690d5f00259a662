"""A start script looks first, starts in order, waits for each process, and notices what ended: with a paper docker."""

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from kveik.profiles.catalog import Variable
from kveik.profiles.node import Node, Process, Ready
from kveik.profiles.shell_form import shell_files
from tests.agents import wait_until

DOCKER = """\
#!/bin/bash
# Writes down what is run; a container lives unless $DEAD names it; an image is there if $IMAGE is.
case "$1" in
run)
    for word in "$@"; do case "$word" in --name=*) echo "${word#--name=}" >>"$OUT/started" ;; esac; done
    printf '%s\\n' "$@" >>"$OUT/words" ;;
inspect) [[ "${*: -1}" == "${DEAD:-}" ]] && echo false || echo true ;;
image) [[ -n "${IMAGE:-}" ]] ;;
build) printf '%s\\n' "$@" >"$OUT/built" ;;
*) printf '%s\\n' "$*" >>"$OUT/others" ;;
esac
"""


def process(name: str, port: int, **more: object) -> Process:
    given = {"title": name, "image": "image:1", "command": (name,), "ready": Ready("127.0.0.1", port, 30, "/health")}
    return Process(name=name, **(given | more))  # type: ignore[arg-type]


def node(*processes: Process, **more: object) -> Node:
    given: dict[str, object] = {
        "number": 0, "title": "a node", "address": "127.0.0.1", "interface": "", "processes": processes, "files": {},
        "device_files": (), "folders": (), "plain_files": (), "in_containers": True, "built_image": "",
        "dockerfile": "", "warnings": (), "source": "here",
    }  # fmt: skip
    return Node(**(given | more))  # type: ignore[arg-type]


class Machine:
    """A folder with a paper docker and curl, and what they wrote down."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": f"{folder}/bin:{os.environ['PATH']}", "OUT": str(folder)}
        (folder / "bin").mkdir()
        self.program("docker", DOCKER)
        self.program("curl", "#!/bin/sh\nexit 0\n")

    def __repr__(self) -> str:
        return f"Machine({self.folder})"

    def program(self, name: str, text: str) -> None:
        path = self.folder / "bin" / name
        path.write_text(text)
        path.chmod(0o755)

    def start(self, made: Node, script: str = "start.sh", **environment: str) -> subprocess.CompletedProcess[str]:
        for name, text in shell_files(made).items():
            (self.folder / name).write_text(text)
        return subprocess.run(
            ["bash", self.folder / script],
            capture_output=True,
            text=True,
            check=False,
            env={**self.environment, **environment},
        )

    def lines(self, name: str) -> list[str]:
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_processes_start_in_order_and_each_is_waited_for(machine: Machine) -> None:
    done = machine.start(node(process("store", 1), process("engine", 2)))
    assert (done.returncode, done.stderr) == (0, "")
    assert machine.lines("started") == ["kveik-store", "kveik-engine"]
    assert [line.split("] ")[1] for line in done.stdout.splitlines()] == [
        "kveik-store is ready",
        "kveik-engine is ready",
    ]


def test_a_process_that_ends_before_it_is_ready_ends_the_start(machine: Machine) -> None:
    machine.program("curl", "#!/bin/sh\nexit 7\n")
    done = machine.start(node(process("store", 1), process("engine", 2)), DEAD="kveik-store")
    assert done.returncode == 1
    assert "kveik-store ended before it was ready: see its log" in done.stderr
    assert machine.lines("started") == ["kveik-store"]


def test_a_process_that_is_not_ready_in_time_ends_the_start(machine: Machine) -> None:
    machine.program("curl", "#!/bin/sh\nexit 7\n")
    done = machine.start(node(process("engine", 2, ready=Ready("127.0.0.1", 2, 1, "/health"))))
    assert done.returncode == 1
    assert "kveik-engine is not ready after its time" in done.stderr


def test_it_waits_until_the_question_succeeds(machine: Machine) -> None:
    machine.program("curl", '#!/bin/sh\necho >>"$OUT/asked"\n[ "$(wc -l <"$OUT/asked")" -ge 3 ]\n')
    assert machine.start(node(process("engine", 2))).returncode == 0
    assert len(machine.lines("asked")) == 3


@pytest.mark.parametrize(
    ("more", "told"),
    [
        ({"device_files": ("/dev/null", "/dev/davinci99")}, "/dev/davinci99 is not there, or is no device"),
        ({"device_files": ("/etc/hostname",)}, "/etc/hostname is not there, or is no device"),
        ({"folders": ("/none here",)}, "the folder /none here is not there"),
        ({"plain_files": ("/etc",)}, "the file /etc is not there, or is no file"),
        ({"address": "192.0.2.11", "interface": "eth0"}, "192.0.2.11 is a placeholder"),
        ({"address": "10.99.99.99", "interface": "lo"}, "the interface lo does not own 10.99.99.99"),
    ],
    ids=["device", "no-device", "folder", "file", "placeholder", "interface"],
)
def test_what_is_missing_is_told_before_anything_starts(machine: Machine, more: dict[str, object], told: str) -> None:
    machine.program("ip", '#!/bin/sh\necho "1: lo    inet 127.0.0.1/8 scope host lo"\n')
    done = machine.start(node(process("engine", 1), **more))
    assert done.returncode == 1
    assert told in done.stderr
    assert machine.lines("started") == []


def test_an_interface_that_owns_the_address_is_right(machine: Machine) -> None:
    machine.program("ip", '#!/bin/sh\necho "2: bond0    inet 10.0.0.1/24 brd 10.0.0.255 scope global bond0"\n')
    made = node(process("engine", 1), address="10.0.0.1", interface="bond0")
    assert machine.start(made).returncode == 0
    near = node(process("engine", 1), address="10.0.0.11", interface="bond0")
    assert machine.start(near).returncode == 1


def test_an_image_is_built_if_it_is_not_there(machine: Machine) -> None:
    made = node(process("engine", 1, image="mine:1"), built_image="mine:1", dockerfile="FROM other\n")
    assert machine.start(made).returncode == 0
    assert machine.lines("built") == ["build", "--tag", "mine:1", str(machine.folder)]
    (machine.folder / "built").unlink()
    assert machine.start(made, IMAGE="there").returncode == 0
    assert machine.lines("built") == []


def test_words_arrive_as_they_are(machine: Machine) -> None:
    odd = ["it's", 'a "b"', "$HOME", "`x`", "a b", "", "*", "\\n", "{a,b}", "!x", "# no comment"]
    made = node(process("engine", 1, command=("vllm", *odd), options=(("--x", "$(y)", "why $this"),)))
    assert machine.start(made).returncode == 0
    words = machine.lines("words")
    assert words[words.index("vllm") + 1 :] == [*odd, "--x", "$(y)"]


def test_files_of_the_environment_are_sourced_first(machine: Machine) -> None:
    made = node(process("engine", 1, before=("/a/set_env.sh",), libraries="/l"))
    assert machine.start(made).returncode == 0
    words = machine.lines("words")
    at = words.index("bash")
    assert words[at : at + 4] == [
        "bash",
        "-c",
        '. "/a/set_env.sh"; export LD_LIBRARY_PATH="/l:${LD_LIBRARY_PATH:-}"; exec "$@"',
        "bash",
    ]


def test_written_files_are_given_from_where_the_script_lies(machine: Machine) -> None:
    made = node(process("engine", 1, files=("x.json",)), files={"x.json": "{}\n"})
    assert machine.start(made).returncode == 0
    assert f"--volume={machine.folder}/x.json:/etc/kveik-launch/x.json:ro" in machine.lines("words")


def test_stopping_ends_the_last_one_first(machine: Machine) -> None:
    machine.start(node(process("store", 1), process("engine", 2)), "stop.sh")
    assert machine.lines("others") == [
        "stop --time=60 kveik-engine",
        "rm kveik-engine",
        "stop --time=60 kveik-store",
        "rm kveik-store",
    ]


def test_without_containers_processes_are_children_that_end_with_the_script(machine: Machine) -> None:
    machine.program("engine", '#!/bin/bash\nprintf "%s" "$A" >"$OUT/seen"\n')
    value = "it's $HOME"
    made = node(process("engine", 1, variables=(Variable("A", value, "why"),)), in_containers=False)
    assert "stop.sh" not in shell_files(made)
    done = machine.start(made, A="another")
    assert done.returncode == 0, done.stderr
    assert (machine.folder / "seen").read_text() == value


def test_without_containers_one_that_ends_at_once_ends_the_others_too(machine: Machine) -> None:
    machine.program("curl", "#!/bin/sh\ncase $* in *:2/*) exit 7 ;; esac\n")
    machine.program("store", '#!/bin/bash\ntrap "touch $OUT/ended; exit" TERM\nwhile :; do sleep 0.1; done\n')
    machine.program("engine", "#!/bin/bash\nexit 3\n")
    done = machine.start(node(process("store", 1), process("engine", 2), in_containers=False))
    assert done.returncode == 1
    assert "engine ended before it was ready" in done.stderr
    wait_until((machine.folder / "ended").exists, "the store's end", 60)


def test_reasons_and_notes_stand_in_the_script() -> None:
    made = node(
        process("engine", 1, options=(("--port", "1", "clients ask there"),)),
        warnings=("measure first",),
        source="a guide",
    )
    text = shell_files(made)["start.sh"]
    assert text.startswith("#!/usr/bin/env bash\n# a node\n# Sources: a guide.\n# Note: measure first.\n")
    assert "    # clients ask there\n    --port 1\n" in text


def test_a_name_with_a_dash_is_an_array_without_one() -> None:
    text = shell_files(node(process("engine-1", 1)))["start.sh"]
    assert "\nengine_1=(\n" in text
    assert shlex.quote("kveik-engine-1") in text
