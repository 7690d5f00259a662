"""What tools and the kernel say of a machine, as numbers; and this machine as it is."""

import os
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.engine.device_tools import Ask
from kveik.launch.machine import (
    Accelerator,
    cpu_list,
    look,
    one_per_core,
    parse_cpu_list,
    parse_npu_smi,
    parse_nvidia_smi,
)
from tests.npu_smi import PROCESSES, TWO_CHIPS

GIB = 1 << 30

ATLAS_A3 = f"""\
{TWO_CHIPS}{PROCESSES}| 0       0                 | 692318        | python3                  | 12417                   |
+===========================+===============+====================================================+
"""
ATLAS_A2 = """\
| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|
| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |
+===========================+===============+====================================================+
| 0     910B4               | OK            | 88.2        30                0    / 0             |
| 0                         | 0000:C1:00.0  | 0           0    / 0          26838/ 32768         |
+===========================+===============+====================================================+
| 1     910B4               | Warning       | 87.0        30                0    / 0             |
| 0                         | 0000:C2:00.0  | 0           0    / 0          29356/ 32768         |
+===========================+===============+====================================================+
"""


def telling(**answers: str) -> Ask:
    """Tools that are there and what they say; all others are not there."""

    def ask(command: Sequence[str]) -> str | None:
        return answers.get(command[0].replace("-", "_"))

    return ask


@pytest.mark.parametrize(
    ("text", "numbers"), [("0-3,8", (0, 1, 2, 3, 8)), ("5\n", (5,)), ("", ()), ("0,2-3", (0, 2, 3)), ("all", ())]
)
def test_lists_of_processors_are_read_as_the_kernel_writes_them(text: str, numbers: tuple[int, ...]) -> None:
    assert parse_cpu_list(text) == numbers


@given(st.sets(st.integers(0, 300), min_size=1))
def test_what_is_written_as_a_list_is_read_back(numbers: set[int]) -> None:
    assert parse_cpu_list(cpu_list(numbers)) == tuple(sorted(numbers))


def test_runs_of_processors_are_written_short() -> None:
    assert cpu_list([0, 1, 2, 5, 7, 8]) == "0-2,5,7-8"


def test_of_two_processors_on_one_core_the_first_allowed_one_counts() -> None:
    siblings = ["0,4", "1,5", "2,6", "3,7"] * 2
    assert one_per_core(range(8), siblings) == (0, 1, 2, 3)
    assert one_per_core([1, 4, 5], siblings) == (1, 4)
    assert one_per_core([0, 1], []) == (0, 1)


def test_cuda_devices_are_read_with_memory_and_number_formats() -> None:
    told = "0, NVIDIA H200, 143771, 9.0\n1, Tesla T4, 15360, 7.5\n2, NVIDIA GB10, [N/A], 12.1\nno devices\n"
    assert parse_nvidia_smi(told) == (
        Accelerator(0, "NVIDIA H200", 143771 << 20),
        Accelerator(1, "Tesla T4", 15360 << 20, bfloat16=False),
        Accelerator(2, "NVIDIA GB10", 0),
    )


def test_ascend_devices_of_two_chips_are_counted_by_their_physical_numbers() -> None:
    assert parse_npu_smi(ATLAS_A3) == (Accelerator(0, "Ascend910", 64 * GIB), Accelerator(1, "Ascend910", 64 * GIB))


def test_ascend_devices_of_one_chip_are_counted_in_order_sick_ones_too() -> None:
    assert parse_npu_smi(ATLAS_A2) == (
        Accelerator(0, "Ascend 910B4", 32 * GIB),
        Accelerator(1, "Ascend 910B4", 32 * GIB),
    )


def test_what_is_no_table_has_no_devices() -> None:
    assert parse_npu_smi("dcmi module initialize failed. ret is -8005") == ()
    assert parse_nvidia_smi("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.") == ()


def test_a_machine_with_cuda_says_so(tmp_path: Path) -> None:
    machine = look(tmp_path, telling(nvidia_smi="0, NVIDIA H200, 143771, 9.0\n"))
    assert (machine.device, len(machine.accelerators), machine.notes) == ("cuda", 1, ())
    assert "1 NVIDIA H200 devices of 140 GiB" in str(machine)


def test_a_machine_with_ascend_says_so(tmp_path: Path) -> None:
    machine = look(tmp_path, telling(npu_smi=ATLAS_A3))
    assert (machine.device, len(machine.accelerators)) == ("ascend", 2)


@pytest.mark.parametrize(
    ("files", "device", "count"),
    [
        (["nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm"], "cuda", 2),
        (["davinci0", "davinci7", "davinci_manager"], "ascend", 2),
        (["null", "zero"], "cpu", 0),
    ],
)
def test_device_files_are_enough_where_the_tool_is_not_there(
    tmp_path: Path, files: list[str], device: str, count: int
) -> None:
    (tmp_path / "dev").mkdir()
    for name in files:
        (tmp_path / "dev" / name).touch()
    machine = look(tmp_path, telling())
    assert (machine.device, len(machine.accelerators)) == (device, count)
    if count:
        assert "told nothing, so the size of the devices' memory is not known" in machine.notes[0]


def test_cores_are_sorted_into_their_numa_nodes(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("one processor makes no two nodes")
    nodes = [allowed[: len(allowed) // 2], allowed[len(allowed) // 2 :]]
    for number, node in enumerate(nodes):
        folder = tmp_path / f"sys/devices/system/node/node{number}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(cpu_list(node) + "\n")
    machine = look(tmp_path, telling())
    assert machine.numa == tuple(tuple(node) for node in nodes)
    assert "in 2 NUMA nodes" in str(machine)


def test_this_machine_is_found_as_it_is() -> None:
    machine = look()
    assert 1 <= len(machine.cores) <= len(os.sched_getaffinity(0))
    assert {core for node in machine.numa for core in node} <= set(machine.cores)
    assert machine.memory_bytes == psutil.virtual_memory().total
    assert 0 < machine.available_bytes <= machine.memory_bytes
    assert machine.shared_bytes > 0
    assert f"{len(machine.cores)} cores" in str(machine)


def test_a_tool_that_fails_or_is_not_there_tells_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = tmp_path / "nvidia-smi"
    broken.write_text("#!/bin/sh\necho 0, NVIDIA H200, 143771, 9.0\nexit 9\n")
    broken.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert look(tmp_path).device == "cpu"
    broken.write_text("#!/bin/sh\necho 0, NVIDIA H200, 143771, 9.0\n")
    assert look(tmp_path).device == "cuda"
