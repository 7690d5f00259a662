"""Finds installed files that are not as they were delivered: changed, removed or added by hand.

A package that pip installed lists its files with their digests in ``RECORD`` (PyPA, "Recording installed projects").
"""

import base64
import csv
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

#: What people patch.
_SUFFIX = ".py"


@dataclass(frozen=True, slots=True)
class PatchLook:
    """What was seen of one package. ``why_not``: why nothing could be compared, or empty. Paths below its folder."""

    why_not: str = ""
    files: int = 0
    changed: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    added: tuple[str, ...] = ()

    @property
    def is_patched(self) -> bool:
        """Whether a file differs, is gone, or was put there."""
        return bool(self.changed or self.missing or self.added)


def look_for_patches(info: Path) -> PatchLook:
    """Compare a package's Python files with its record. ``info``: its ``.dist-info`` folder."""
    if _is_editable(info):
        return PatchLook(why_not="it is installed from a source folder")
    try:
        with (info / "RECORD").open(encoding="utf8", newline="") as file:
            record = {row[0]: row[1] for row in csv.reader(file) if len(row) == 3 and row[0].endswith(_SUFFIX)}
    except OSError:
        return PatchLook(why_not="it has no record of its files")
    root = info.parent
    changed, missing = [], []
    for name, digest in record.items():
        try:
            if digest and digest != _digest(root / name, digest.partition("=")[0]):
                changed.append(name)
        except OSError:
            missing.append(name)
    added = sorted(set(_python_files(root, record)) - record.keys())
    return PatchLook("", len(record), tuple(sorted(changed)), tuple(sorted(missing)), tuple(added))


def _is_editable(info: Path) -> bool:
    try:
        origin = json.loads((info / "direct_url.json").read_text(encoding="utf8"))
    except (OSError, ValueError):
        return False
    return bool(origin.get("dir_info", {}).get("editable"))


def _digest(file: Path, algorithm: str) -> str:
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, algorithm).digest()
    return f"{algorithm}={base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def _python_files(root: Path, record: dict[str, str]) -> Iterator[str]:
    """Python files in the folders of which the record speaks."""
    tops = {name.split("/")[0] for name in record if "/" in name and not name.startswith("..")}
    for top in tops:
        if not top.endswith(".dist-info"):
            yield from (file.relative_to(root).as_posix() for file in (root / top).rglob(f"*{_SUFFIX}"))
