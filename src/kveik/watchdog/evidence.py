"""What is saved of a sick engine before anything is done to it: a folder for each incident.

::

    20261129-233000-engine-1-hung/
        summary.txt       in plain words: what was seen, and what is in the other files
        processes.txt     the process tree, with state, processor time, memory and threads
        stacks-PID.txt    what each of its processes was doing: Python's stack by py-spy, or where the kernel holds it
        log.txt           the last lines of its log
        metrics.txt       its metrics, now or as they were read last
        samples.json      what the watchdog saw, look by look
        device.txt        what the device's own tool says

Every step is bounded in time and size, a step that fails says so in its file, and what looks like a secret is hidden.
A folder is whole or not there; the oldest go.
"""

import contextlib
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import psutil

from kveik.telemetry.redaction import redacted, redacted_environment
from kveik.watchdog.verdict import Sample, Verdict

LOG_BYTES_MAX = 256 << 10
TEXT_BYTES_MAX = 1 << 20
STACKS_MAX = 16
STACK_S = 5.0
DEVICE_S = 10.0
#: All stacks together: an incident with many processes must not hold up its own end.
STACKS_S = 20.0

#: Tools of devices, and how they are asked for everything.
DEVICE_TOOLS = (("nvidia-smi",), ("npu-smi", "info"), ("rocm-smi",))
#: Variables that say how an engine was started; no others are kept.
_VARIABLES = re.compile(
    r"(?:VLLM|KVEIK|CUDA|NVIDIA|NCCL|ASCEND|HCCL|NPU|OMP|MKL|TORCH|PYTORCH|LD|HF|RAY|GLOO|TP|PYTHONHASHSEED)(?:_|$)"
)


@dataclass(frozen=True, slots=True)
class Incident:
    """An engine that is sick, and where evidence of it is.

    ``pids``: its processes on this machine, if they can be seen. ``log``: its log file, if there is one. ``metrics``:
    text of its metrics, asked for now, or empty. ``history``: what was done to it before, in words.
    """

    engine: str
    node: str
    url: str
    verdict: Verdict
    at_s: float
    pids: tuple[int, ...] = ()
    log: str = ""
    samples: Sequence[Sample] = ()
    history: Sequence[str] = ()
    metrics: Callable[[], str] = str


class EvidenceFolder:
    """The folders of all incidents of a node; at most ``bundles_max`` of them."""

    def __init__(self, root: Path, *, bundles_max: int, py_spy: str | None = None) -> None:
        """``py_spy``: the program; None: look for it, empty: do without."""
        self.root = root
        self._bundles_max = bundles_max
        self._py_spy = _found_py_spy() if py_spy is None else py_spy

    def __repr__(self) -> str:
        return f"EvidenceFolder({self.root})"

    def save(self, incident: Incident) -> Path:
        """The new folder. Raises :class:`OSError` where it cannot be written."""
        name = _name(incident)
        self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
        target = self._unused(name)
        unfinished = self.root / f".{target.name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        unfinished.mkdir(mode=0o700)
        for file, content in self._contents(incident):
            _write(unfinished / file, content)
        unfinished.replace(target)
        self._tidy_up()
        return target

    def add(self, name: str, file: str, text: str) -> None:
        """Put one more file into a folder, for example what a restart command said. Failures are nobody's concern."""
        folder = self.root / name
        if name and folder.is_dir():
            with contextlib.suppress(OSError):
                _write(folder / file, text)

    def bundles(self) -> list[Path]:
        """All folders, oldest first."""
        with contextlib.suppress(FileNotFoundError):
            return sorted(path for path in self.root.iterdir() if path.is_dir() and not path.name.startswith("."))
        return []

    def _contents(self, incident: Incident) -> "list[tuple[str, str]]":
        """All files. Stacks first: they are what a moment later is no longer so."""
        processes = _tree(incident.pids)
        files = [(f"stacks-{process.pid}.txt", text) for process, text in self._stacks(processes)]
        files += [
            ("processes.txt", _processes_text(processes)),
            ("metrics.txt", _of(incident.metrics)),
            ("log.txt", _log_text(incident.log)),
            ("samples.json", _samples_text(incident.samples)),
        ]
        if device := _device_text():
            files.append(("device.txt", device))
        return [("summary.txt", _summary(incident, processes, [name for name, _ in files])), *files]

    def _stacks(self, processes: Sequence[psutil.Process]) -> "list[tuple[psutil.Process, str]]":
        until_s = time.monotonic() + STACKS_S
        stacks = []
        for process in processes[:STACKS_MAX]:
            text = _kernel_view(process)
            left_s = until_s - time.monotonic()
            if self._py_spy and left_s > 0 and _is_python(process):
                text = _python_stack(self._py_spy, process, min(STACK_S, left_s)) + "\n" + text
            stacks.append((process, text))
        return stacks

    def _unused(self, name: str) -> Path:
        taken = {path.name for path in self.bundles()}
        numbered = (name if number == 1 else f"{name}-{number}" for number in range(1, len(taken) + 2))
        return self.root / next(candidate for candidate in numbered if candidate not in taken)

    def _tidy_up(self) -> None:
        for folder in self.bundles()[: -self._bundles_max]:
            shutil.rmtree(folder, ignore_errors=True)
        for folder in self.root.glob(".*.unfinished"):  # of a watchdog that was killed
            shutil.rmtree(folder, ignore_errors=True)


def _name(incident: Incident) -> str:
    when = time.strftime("%Y%m%d-%H%M%S", time.gmtime(incident.at_s))
    engine = re.sub(r"[^A-Za-z0-9._-]", "_", incident.engine)[:64]
    return f"{when}-{engine}-{incident.verdict.condition.value}"


def _write(file: Path, text: str) -> None:
    data = redacted(text).encode("utf8", "replace")
    fd = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with os.fdopen(fd, "wb") as out:
        out.write(data[:TEXT_BYTES_MAX])


def _summary(incident: Incident, processes: Sequence[psutil.Process], files: Sequence[str]) -> str:
    when = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(incident.at_s))
    verdict = incident.verdict
    lines = [
        f"Engine {incident.engine} on node {incident.node or '(unnamed)'} at {incident.url}",
        f"was {verdict.condition.value} at {when}.",
        "",
        f"Why: {verdict.why}.",
        f"Its processes: {len(processes)}" + ("" if incident.pids else " (none can be seen from here)") + ".",
        "",
        "What was done before:",
        *(f"  {line}" for line in incident.history or ["nothing"]),
        "",
        "Files:",
        *(f"  {name}: {_MEANINGS.get(name.partition('-')[0], '')}" for name in sorted(files)),
    ]
    return "\n".join(lines) + "\n"


_MEANINGS: Mapping[str, str] = {
    "processes.txt": "all of its processes, with state, processor time, memory and threads",
    "stacks": "what this process was doing",
    "log.txt": "the last lines of its log",
    "metrics.txt": "its metrics",
    "samples.json": "what the watchdog saw, look by look",
    "device.txt": "what the device's own tool says",
}


def _tree(pids: Sequence[int]) -> list[psutil.Process]:
    """The processes and all that they started, each once."""
    found: dict[int, psutil.Process] = {}
    for pid in pids:
        with contextlib.suppress(psutil.Error):
            process = psutil.Process(pid)
            for one in (process, *process.children(recursive=True)):
                found.setdefault(one.pid, one)
    return sorted(found.values(), key=lambda process: process.pid)


def _processes_text(processes: Sequence[psutil.Process]) -> str:
    lines = ["pid      parent   state       threads  cpu_s     resident_MiB  command"]
    for process in processes:
        try:
            with process.oneshot():
                times, memory = process.cpu_times(), process.memory_info()
                command = " ".join(process.cmdline()).strip()[:500]
                lines.append(
                    f"{process.pid:<8} {process.ppid():<8} {process.status():<11} {process.num_threads():<8} "
                    f"{times.user + times.system:<9.1f} {memory.rss >> 20:<13} {command}"
                )
        except psutil.Error as error:
            lines.append(f"{process.pid:<8} {type(error).__name__}")
    lines += ["", *_environment_lines(processes)]
    return "\n".join(lines) + "\n"


def _environment_lines(processes: Sequence[psutil.Process]) -> list[str]:
    for process in processes[:1]:
        with contextlib.suppress(psutil.Error, OSError):
            environment = redacted_environment(process.environ())
            kept = {name: value for name, value in sorted(environment.items()) if _VARIABLES.match(name)}
            return [f"variables of {process.pid}:", *(f"  {name}={value}" for name, value in kept.items())]
    return []


def _kernel_view(process: psutil.Process) -> str:
    """Where the kernel holds each thread: readable without any right for processes of the same user."""
    lines = ["thread   state  waits in                  name"]
    for task in sorted(Path(f"/proc/{process.pid}/task").glob("*"))[:256]:
        with contextlib.suppress(OSError):
            name, _, rest = (task / "stat").read_text().partition("(")[2].rpartition(")")
            waits = (task / "wchan").read_text().strip() or "-"
            lines.append(f"{task.name:<8} {rest.split()[0]:<6} {waits:<25} {name}")
    return "\n".join(lines) + "\n"


def _is_python(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):
        return "python" in f"{Path(process.exe()).name} {process.name()}".lower()
    return False


def _python_stack(py_spy: str, process: psutil.Process, seconds: float) -> str:
    command = [py_spy, "dump", "--pid", str(process.pid)]
    with contextlib.suppress(psutil.Error):
        if process.status() == psutil.STATUS_STOPPED:
            command.append("--nonblocking")  # it stands still already, and must not be set going
    return _said_by(command, seconds)


def _found_py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    return str(beside) if beside.exists() else shutil.which("py-spy") or ""


def _device_text() -> str:
    texts = [_said_by([found, *tool[1:]], DEVICE_S) for tool in DEVICE_TOOLS if (found := shutil.which(tool[0]))]
    return "\n".join(texts)


def _said_by(command: Sequence[str], seconds: float) -> str:
    """What a program says, both outputs; or why it says nothing."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=seconds,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return f"$ {shown}\ndid not end within {seconds:g} s\n"
    except OSError as error:
        return f"$ {shown}\ncould not be run: {error}\n"
    return f"$ {shown}\n{done.stdout.decode('utf8', 'replace')}"


def _log_text(log: str) -> str:
    if not log:
        return "its log is not on this machine, or nobody said where\n"
    try:
        with Path(log).open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - LOG_BYTES_MAX))
            text = file.read().decode("utf8", "replace")
    except OSError as error:
        return f"cannot read {log}: {error.strerror}\n"
    return text if size <= LOG_BYTES_MAX else text.partition("\n")[2]


def _of(metrics: Callable[[], str]) -> str:
    return metrics() or "its metrics did not answer\n"


def _samples_text(samples: Sequence[Sample]) -> str:
    return msgspec.json.format(msgspec.json.encode([_plain(sample) for sample in samples]), indent=1).decode()


def _plain(sample: Sample) -> Any:
    return msgspec.to_builtins(sample, enc_hook=str)
