"""On which machine a figure was measured: figures without it mean nothing."""

import os
import platform
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine, as far as it matters for figures."""

    processor: str
    cores: int
    memory_gib: float
    system: str
    load: float

    def __str__(self) -> str:
        return f"{self.processor}, {self.cores} cores, {self.memory_gib:.0f} GiB, {self.system}"

    def document(self) -> dict[str, str | int | float]:
        """As a JSON object."""
        return asdict(self)


def this_machine() -> Machine:
    """This machine now; ``load`` is the average over the last minute, from other work too."""
    return Machine(
        processor=processor_name(),
        cores=len(os.sched_getaffinity(0)),
        memory_gib=round(psutil.virtual_memory().total / (1 << 30), 1),
        system=f"{platform.system()} {platform.machine()}",
        load=round(os.getloadavg()[0], 2),
    )


def processor_name(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The processor's name as the kernel tells it."""
    try:
        lines = cpuinfo.read_text(encoding="utf8").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
