"""Memory by process, as the tools of devices show it."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from kveik.engine.device_tools import (
    CUDA_MEMORY,
    CUDA_PROCESSES,
    MIB,
    NPU_INFO,
    DeviceUse,
    NpuChip,
    ask_tool,
    cuda_use,
    npu_chips,
    npu_use,
    read_use,
)
from tests.npu_smi import PROCESSES, TWO_CHIPS

#: Two NPUs, the first of two chips, as Atlas A3 shows them, and the processes of two engines.
ATLAS_A3 = f"""\
{TWO_CHIPS}| 3     Ascend910           | OK            | 160.0       30                0    / 0             |
| 0     6                   | 0000:A1:00.0  | 0           0    / 0          3180 / 65536         |
+===========================+===============+====================================================+
{PROCESSES}| 0       0                 | 692318        | python3                  | 12000                   |
| 0       0                 | 700000        | python3                  | 300                     |
| 0       1                 | 692319        | VLLM::Worker_TP1         | 12400                   |
+===========================+===============+====================================================+
| No running processes found in NPU 3                                                            |
+===========================+===============+====================================================+
"""
GPUS = "GPU-aa, 143771\nGPU-bb, 143771\n"
APPS = "GPU-aa, 11, 100000\nGPU-aa, 12, 2000\nGPU-bb, 13, 90000\n"


def test_chips_are_known_by_their_place_and_by_the_number_that_engines_use() -> None:
    assert npu_chips(ATLAS_A3) == (
        NpuChip("0/0", 0, "Ascend910", 65536 * MIB),
        NpuChip("0/1", 1, "Ascend910", 65536 * MIB),
        NpuChip("3/0", 6, "Ascend910", 65536 * MIB),
    )


def test_an_engine_has_what_its_processes_have_on_all_chips() -> None:
    use = npu_use(ATLAS_A3)
    assert use.of({692318, 692319}) == 24400 * MIB
    assert use.of({700000}) == 300 * MIB
    assert use.of({1}) is None


def test_it_could_have_what_others_leave_of_the_devices_that_it_uses() -> None:
    assert npu_use(ATLAS_A3).most_for({692318, 692319}) == (2 * 65536 - 300) * MIB
    assert cuda_use(GPUS, APPS).most_for({11}) == (143771 - 2000) * MIB
    assert cuda_use(GPUS, APPS).most_for({99}) is None


def test_gpus_tell_the_same_in_tables_of_commas() -> None:
    use = cuda_use(GPUS, APPS)
    assert use.of({11, 13}) == 190000 * MIB
    assert use.memory_bytes == {"GPU-aa": 143771 * MIB, "GPU-bb": 143771 * MIB}


@pytest.mark.parametrize(
    ("gpus", "apps"),
    [
        (GPUS, "GPU-aa, 11, [N/A]\n"),
        (GPUS, "No devices were found\n"),
        ("", ""),
        ("GPU-aa, [N/A]\n", "GPU-cc, x, y\n"),
    ],
    ids=["not told", "no devices", "nothing", "no numbers"],
)
def test_what_is_no_number_is_not_known(gpus: str, apps: str) -> None:
    assert cuda_use(gpus, apps).of({11}) is None


def test_without_the_size_of_a_device_there_is_no_limit() -> None:
    assert cuda_use("", APPS).most_for({11}) is None


@pytest.mark.parametrize("text", ["dcmi module initialize failed. ret is -8005", ""])
def test_a_tool_that_fails_shows_nothing(text: str) -> None:
    assert npu_use(text) == DeviceUse()


def test_the_tool_that_is_there_is_asked() -> None:
    asked: list[Sequence[str]] = []

    def telling(**answers: str) -> DeviceUse:
        def ask(command: Sequence[str]) -> str | None:
            asked.append(command)
            return answers.get(command[1].partition("=")[0].strip("-").replace("-", "_"))

        return read_use(ask)

    assert telling(query_gpu=GPUS, query_compute_apps=APPS).of({11}) == 100000 * MIB
    assert asked == [CUDA_MEMORY, CUDA_PROCESSES]
    assert telling(info=ATLAS_A3).of({700000}) == 300 * MIB
    assert asked[2:] == [CUDA_MEMORY, NPU_INFO]
    assert telling() == DeviceUse()


def test_a_real_command_is_run_and_its_failure_is_no_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "npu-smi"
    tool.write_text(f"#!/bin/sh\ncat <<'END'\n{ATLAS_A3}END\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert read_use().of({692319}) == 12400 * MIB
    tool.write_text("#!/bin/sh\nexit 9\n")
    assert ask_tool(NPU_INFO) is None
    assert ask_tool(["no-such-tool"]) is None
