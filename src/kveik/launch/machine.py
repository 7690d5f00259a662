"""What this machine has: cores, memory, NUMA nodes, and CUDA or Ascend devices.

What tools and the kernel say is read by pure functions; :func:`look` gathers it. Nothing here needs torch.
"""

import contextlib
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from kveik.engine.device_tools import NPU_INFO, Ask, ask_tool, npu_chips
from kveik.store.shared_memory import available_memory_bytes

_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Accelerator:
    """One device as engines count them. ``memory_bytes`` 0: not known. ``bfloat16``: whether it computes with it."""

    index: int
    name: str = ""
    memory_bytes: int = 0
    bfloat16: bool = True


@dataclass(frozen=True, slots=True)
class Machine:
    """One machine. ``cores``: one logical processor of each core that we may use; ``numa``: the same, by node.

    ``available_bytes``: memory that can be taken now; ``shared_bytes``: free room in ``/dev/shm``. ``device`` is
    ``cpu``, ``cuda`` or ``ascend``. ``notes``: what could not be found out.
    """

    cores: tuple[int, ...]
    numa: tuple[tuple[int, ...], ...]
    memory_bytes: int
    available_bytes: int
    shared_bytes: int
    device: str = "cpu"
    accelerators: tuple[Accelerator, ...] = ()
    notes: tuple[str, ...] = ()

    def __str__(self) -> str:
        cores = f"{len(self.cores)} cores"
        nodes = f" in {len(self.numa)} NUMA nodes" if len(self.numa) > 1 else ""
        memory = f"{self.available_bytes / (1 << 30):.1f} of {self.memory_bytes / (1 << 30):.1f} GiB memory free"
        if not self.accelerators:
            return f"{cores}{nodes}, {memory}, no CUDA or Ascend device"
        first = self.accelerators[0]
        size = f" of {first.memory_bytes / (1 << 30):.0f} GiB" if first.memory_bytes else ""
        return f"{len(self.accelerators)} {first.name or self.device} devices{size}, {cores}{nodes}, {memory}"


def look(root: Path = Path("/"), ask: Ask = ask_tool) -> Machine:
    """This machine now. ``root`` and ``ask`` are for looking at another one's files and tools."""
    allowed = os.sched_getaffinity(0)
    siblings = [_text(file) for file in _cpu_folders(root, "topology/thread_siblings_list")]
    cores = one_per_core(allowed, siblings)
    nodes = [parse_cpu_list(_text(file)) for file in sorted(root.glob("sys/devices/system/node/node[0-9]*/cpulist"))]
    numa = tuple(own for node in nodes if (own := tuple(core for core in cores if core in node)))
    device, accelerators, notes = _devices(root, ask)
    memory = psutil.virtual_memory()
    return Machine(
        cores=cores,
        numa=numa or (cores,),
        memory_bytes=memory.total,
        available_bytes=available_memory_bytes(),
        shared_bytes=_free_bytes(root / "dev/shm"),
        device=device,
        accelerators=accelerators,
        notes=notes,
    )


def parse_cpu_list(text: str) -> tuple[int, ...]:
    """The numbers of ``0-3,8``, as the kernel writes them."""
    numbers: list[int] = []
    for part in text.strip().split(","):
        if match := re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip()):
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return tuple(numbers)


def cpu_list(numbers: Iterable[int]) -> str:
    """Numbers as ``0-3,8``."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][1] == number - 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ",".join(f"{first}" if first == last else f"{first}-{last}" for first, last in runs)


def one_per_core(allowed: Iterable[int], siblings: Iterable[str]) -> tuple[int, ...]:
    """The first allowed logical processor of each core: a second one on the same core computes no faster.

    ``siblings``: the kernel's ``thread_siblings_list`` of each processor; without it each one is a core.
    """
    left = set(allowed)
    chosen = []
    for group in sorted({parse_cpu_list(text) for text in siblings}):
        if own := [number for number in group if number in left]:
            chosen.append(own[0])
            left -= set(own)
    return tuple(sorted([*chosen, *left]))


def parse_nvidia_smi(text: str) -> tuple[Accelerator, ...]:
    """Devices in ``nvidia-smi --query-gpu=index,name,memory.total,compute_cap --format=csv,noheader,nounits``."""
    found = []
    for line in text.splitlines():
        fields = [field.strip() for field in line.split(",")]
        if len(fields) != 4 or not fields[0].isdigit():
            continue
        memory = int(fields[2]) * _MIB if fields[2].isdigit() else 0
        old = re.fullmatch(r"([1-7])\.\d", fields[3]) is not None  # bfloat16 begins with compute capability 8.0
        found.append(Accelerator(int(fields[0]), fields[1], memory, bfloat16=not old))
    return tuple(found)


def parse_npu_smi(text: str) -> tuple[Accelerator, ...]:
    """Devices in the table of ``npu-smi info``. A chip that is not in the table is not there."""
    return tuple(
        Accelerator(
            index if chip.number is None else chip.number,
            chip.name if chip.name.startswith("Ascend") else f"Ascend {chip.name}",
            chip.memory_bytes,
        )
        for index, chip in enumerate(npu_chips(text))
    )


def _devices(root: Path, ask: Ask) -> tuple[str, tuple[Accelerator, ...], tuple[str, ...]]:
    asked = {
        "cuda": ["nvidia-smi", "--query-gpu=index,name,memory.total,compute_cap", "--format=csv,noheader,nounits"],
        "ascend": NPU_INFO,
    }
    readers = {"cuda": parse_nvidia_smi, "ascend": parse_npu_smi}
    files = {"cuda": r"nvidia(\d+)", "ascend": r"davinci(\d+)"}
    for device, command in asked.items():
        if accelerators := readers[device](ask(command) or ""):
            return device, accelerators, ()
    names = [file.name for file in root.glob("dev/*")] if (root / "dev").is_dir() else []
    for device, pattern in files.items():
        numbers = sorted(int(match[1]) for name in names if (match := re.fullmatch(pattern, name)))
        if numbers:
            tool = asked[device][0]
            note = f"{tool} told nothing, so the size of the devices' memory is not known"
            return device, tuple(Accelerator(number) for number in numbers), (note,)
    return "cpu", (), ()


def _cpu_folders(root: Path, file: str) -> list[Path]:
    return sorted(root.glob(f"sys/devices/system/cpu/cpu[0-9]*/{file}"))


def _text(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text(encoding="utf8")
    return ""


def _free_bytes(folder: Path) -> int:
    with contextlib.suppress(OSError):
        return psutil.disk_usage(str(folder)).free  # type: ignore[no-any-return]
    return 0
