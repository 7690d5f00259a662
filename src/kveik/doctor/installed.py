"""Looks which packages an interpreter has, and which CANN and driver are on this machine."""

import re
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kveik.errors import DoctorError

_ASK = """
import importlib.metadata as m, json, platform, sys
sys.path.pop(0)
found = []
for d in m.distributions():
    files = getattr(d, "_path", None)
    found.append({"name": d.metadata["Name"] or "", "version": d.version or "", "info": str(files or "")})
print(json.dumps({"python": platform.python_version(), "packages": found}))
"""
_ASK_LIMIT_S = 60.0
_VERSION = re.compile(r"^\s*(?:Version|version|\w*_version)\s*=\s*(?:\[[\w.]*:)?\[?(\d[\w.]*)", re.MULTILINE)
#: Files that say which CANN is installed, below its folder; one for each way of installing it.
_CANN_FILES = (
    "ascend-toolkit/latest/*-linux/ascend_toolkit_install.info",
    "cann/*-linux/ascend_toolkit_install.info",
    "cann*/*-linux/ascend_toolkit_install.info",
    "ascend-toolkit/latest/version.cfg",
)
_DRIVER_FILE = "driver/version.info"


class Package(msgspec.Struct, frozen=True):
    """An installed package. ``info``: its ``.dist-info`` folder, empty if it has none."""

    name: str
    version: str
    info: str


class PythonPackages(msgspec.Struct, frozen=True):
    """What an interpreter has. ``python``: its own version."""

    python: str
    packages: tuple[Package, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A version and the file that says so."""

    version: str
    file: Path


def packages_of(python: str) -> PythonPackages:
    """Ask an interpreter for its packages; nothing of them is imported. Raises :class:`DoctorError`."""
    try:
        asked = subprocess.run([python, "-c", _ASK], capture_output=True, text=True, check=False, timeout=_ASK_LIMIT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DoctorError(f"cannot ask {python} for its packages: {error}") from error
    if asked.returncode != 0:
        raise DoctorError(f"cannot ask {python} for its packages: {asked.stderr.strip()[-300:]}")
    return msgspec.json.decode(asked.stdout, type=PythonPackages)


def cann_version(ascend: Path) -> Found | None:
    """The CANN that is installed below a folder, or None."""
    return _first_version([file for pattern in _CANN_FILES for file in sorted(ascend.glob(pattern))])


def driver_version(ascend: Path) -> Found | None:
    """The driver (HDK) that is installed below a folder, or None."""
    return _first_version([ascend / _DRIVER_FILE])


def _first_version(files: Sequence[Path]) -> Found | None:
    for file in files:
        try:
            found = _VERSION.search(file.read_text(encoding="utf8", errors="replace"))
        except OSError:
            continue
        if found:
            return Found(found[1], file)
    return None
