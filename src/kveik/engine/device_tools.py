"""What the tools of CUDA and Ascend devices say of memory. Texts are read by pure functions.

``nvidia-smi`` writes tables of commas when asked; ``npu-smi info`` draws one of two rows a chip, and a second one of
processes (npu-smi 23 to 25).
"""

import re
import subprocess
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

MIB = 1 << 20
_TOOL_S = 20.0
#: Runs a tool and gives its standard output; None if it is not there or fails.
Ask = Callable[[Sequence[str]], str | None]

NPU_INFO = ("npu-smi", "info")
CUDA_MEMORY = ("nvidia-smi", "--query-gpu=uuid,memory.total", "--format=csv,noheader,nounits")
CUDA_PROCESSES = ("nvidia-smi", "--query-compute-apps=gpu_uuid,pid,used_gpu_memory", "--format=csv,noheader,nounits")

_NPU_ROW = re.compile(r"^\|\s*(\d+)\s+([A-Za-z0-9]+[A-Za-z][A-Za-z0-9]*|\w*[A-Za-z]\w*)\s*\|\s*[A-Za-z]+\s*\|")
_CHIP_ROW = re.compile(
    r"^\|\s*(\d+)(?:\s+(\d+))?\s*\|\s*[0-9A-Fa-f]{4}:[0-9A-Fa-f:.]+\s*\|.*?(\d+)\s*/\s*(\d+)\s*\|\s*$"
)
_PROCESS_ROW = re.compile(r"^\|\s*(\d+)\s+(\d+)\s*\|\s*(\d+)\s*\|[^|]*\|\s*(\d+)\s*\|\s*$")


@dataclass(frozen=True, slots=True)
class NpuChip:
    """One chip that ``npu-smi info`` shows. ``place``: NPU and chip; ``number``: as engines count, if it is told."""

    place: str
    number: int | None
    name: str
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """Memory of all devices in bytes: what each has (0: not known), and what each process has of it."""

    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    process_bytes: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    def of(self, pids: Collection[int]) -> int | None:
        """What these processes have together; None if no device knows one of them."""
        own = [used for processes in self.process_bytes.values() for pid, used in processes.items() if pid in pids]
        return sum(own) if own else None

    def most_for(self, pids: Collection[int]) -> int | None:
        """What they could have at most on the devices that they use: all that is not others'. None: not known."""
        most = 0
        for device, processes in self.process_bytes.items():
            if not any(pid in pids for pid in processes):
                continue
            if not self.memory_bytes.get(device):
                return None
            most += self.memory_bytes[device] - sum(used for pid, used in processes.items() if pid not in pids)
        return most or None


def ask_tool(command: Sequence[str]) -> str | None:
    """What a tool says; None if it is not there, fails, or takes too long."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TOOL_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def npu_chips(text: str) -> tuple[NpuChip, ...]:
    """The chips that ``npu-smi info`` shows. The last pair of numbers of a row is memory in use and in all, in MB."""
    found: list[NpuChip] = []
    npu = name = ""
    for line in text.splitlines():
        if chip := _CHIP_ROW.match(line):
            number = int(chip[2]) if chip[2] else None
            found.append(NpuChip(f"{npu}/{chip[1]}", number, name, int(chip[4]) * MIB))
        elif row := _NPU_ROW.match(line):
            npu, name = row[1], row[2]
    return tuple(found)


def npu_use(text: str) -> DeviceUse:
    """Memory in the two tables of ``npu-smi info``."""
    processes: dict[str, dict[int, int]] = {}
    for line in text.splitlines():
        if row := _PROCESS_ROW.match(line):
            processes.setdefault(f"{row[1]}/{row[2]}", {})[int(row[3])] = int(row[4]) * MIB
    return DeviceUse({chip.place: chip.memory_bytes for chip in npu_chips(text)}, processes)


def cuda_use(memory: str, processes: str) -> DeviceUse:
    """Memory in what :data:`CUDA_MEMORY` and :data:`CUDA_PROCESSES` say."""
    used: dict[str, dict[int, int]] = {}
    for device, pid, mib in _rows(processes, 3):
        if pid.isdigit() and mib.isdigit():  # where the driver does not tell, it says [N/A]
            used.setdefault(device, {})[int(pid)] = int(mib) * MIB
    return DeviceUse({device: int(mib) * MIB for device, mib in _rows(memory, 2) if mib.isdigit()}, used)


def read_use(ask: Ask = ask_tool) -> DeviceUse:
    """Memory of this machine's devices now, by whichever tool there is; nothing without any."""
    memory = ask(CUDA_MEMORY)
    if memory is not None:
        return cuda_use(memory, ask(CUDA_PROCESSES) or "")
    return npu_use(ask(NPU_INFO) or "")


def _rows(text: str, fields: int) -> Iterator[list[str]]:
    for line in text.splitlines():
        row = [part.strip() for part in line.split(",")]
        if len(row) == fields:
            yield row
