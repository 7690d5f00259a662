"""The check ``devices``: whether the devices and cores that engines want are here, and what containers must mount."""

import os
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from kveik.doctor.check import Context, Outcome, Point, Verdict, fleet_of
from kveik.doctor.fleet_described import DescribedEngine
from kveik.launch.machine import Machine, cpu_list, look, parse_cpu_list
from kveik.profiles import catalog
from kveik.profiles.catalog import Hardware

_MOUNT = "mount it as `kveik launch` writes: docker makes an empty folder of a file that is not on the host"


def check_devices(context: Context) -> Verdict:
    """Look at this machine. Raises :class:`kveik.errors.DoctorError` where no fleet was named."""
    described = fleet_of(context).described
    machine = look()
    points = list(judge_devices(described.here, machine, os.sched_getaffinity(0)))
    if machine.device == "ascend":
        points += judge_mounts(_hardware(Path("/")), Path("/"))
    return Verdict([str(machine), *machine.notes], points)


def judge_devices(engines: Sequence[DescribedEngine], machine: Machine, allowed: Collection[int]) -> Iterator[Point]:
    """Of each engine with devices or cores of its own: whether they are here, and nobody else's.

    ``allowed``: the processors that we may use.
    """
    has = {one.index for one in machine.accelerators}
    asked = False
    for engine in engines:
        if wanted := _numbers(engine.devices):
            asked = True
            yield _devices(engine, wanted, has, machine)
        if engine.cores:
            asked = True
            yield _cores(engine, allowed)
    yield from _twice(engines)
    if not asked:
        yield Point(Outcome.WELL, machine.device, "no engine asks for certain devices or cores")


def judge_mounts(hardware: Hardware, root: Path) -> Iterator[Point]:
    """Whether what a container needs of an Ascend host is there, and a file where it should be one."""
    for name in hardware.device_files:
        path = root / name.lstrip("/")
        if not path.exists():
            yield Point(Outcome.WRONG, name, "the device file is not there", f"docker run --device {name}")
        elif not path.is_char_device():
            yield Point(Outcome.WRONG, name, "it is there and is no device", f"docker run --device {name}")
    for name in hardware.folders:
        path = root / name.lstrip("/")
        if not path.is_dir() or not any(path.iterdir()):
            yield Point(Outcome.WRONG, name, "the folder of the driver is empty or not there", _MOUNT)
    for name in hardware.files:
        path = root / name.lstrip("/")
        if path.is_dir():
            yield Point(Outcome.WRONG, name, "it is a folder, and must be a file", _MOUNT)
        elif not path.exists():
            yield Point(Outcome.BEWARE, name, "it is not there: tools that need it do not work", _MOUNT)


def _hardware(root: Path) -> Hardware:
    """The kind of Ascend machine that this is most like, by its device files."""
    rows = [row for name in catalog.names("hardware") if (row := catalog.hardware(name)).platform == "ascend"]
    return max(rows, key=lambda row: sum((root / name.lstrip("/")).exists() for name in row.device_files))


def _devices(engine: DescribedEngine, wanted: Sequence[int], has: set[int], machine: Machine) -> Point:
    about = f"devices of {engine.name}"
    if missing := [number for number in wanted if number not in has]:
        told = f"{', '.join(map(str, missing))} is wanted, and this machine shows {sorted(has) or 'none'}"
        remedy = "docker run --device, --gpus; ASCEND_RT_VISIBLE_DEVICES and CUDA_VISIBLE_DEVICES; npu-smi info"
        return Point(Outcome.WRONG, about, told, remedy)
    return Point(Outcome.WELL, about, f"{engine.devices} of {machine.device}")


def _cores(engine: DescribedEngine, allowed: Collection[int]) -> Point:
    about = f"cores of {engine.name}"
    if missing := [core for core in parse_cpu_list(engine.cores) if core not in allowed]:
        told = f"{engine.cores} is wanted, and we may use {cpu_list(allowed)}: not {cpu_list(missing)}"
        return Point(Outcome.WRONG, about, told, "set cores that are here, one logical processor of each core")
    return Point(Outcome.WELL, about, engine.cores)


def _twice(engines: Sequence[DescribedEngine]) -> Iterator[Point]:
    """Devices and cores that two engines want."""
    for what in ("devices", "cores"):
        taken: dict[int, str] = {}
        shared: dict[tuple[str, str], list[int]] = {}
        for engine in engines:
            for number in _numbers(getattr(engine, what)):
                if number in taken:
                    shared.setdefault((taken[number], engine.name), []).append(number)
                taken.setdefault(number, engine.name)
        yield from _shared(what, shared)


def _shared(what: str, shared: Mapping[tuple[str, str], Sequence[int]]) -> Iterator[Point]:
    for (first, second), numbers in shared.items():
        told = f"{first} and {second} both want {what} {', '.join(map(str, numbers))}: slower by an order of magnitude"
        yield Point(Outcome.WRONG, what, told, f"give each engine {what} of its own")


def _numbers(text: str) -> tuple[int, ...]:
    return parse_cpu_list(text) if text else ()
