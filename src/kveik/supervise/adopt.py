"""What a supervisor leaves to the next one: which processes run, so that none of them is started twice or forgotten."""

import os
from collections.abc import Iterable
from pathlib import Path

import msgspec

from kveik.engine.group import ProcessId
from kveik.errors import SuperviseError

FORMAT = 1


class KeptRecord(msgspec.Struct, frozen=True, kw_only=True):
    """One part. ``tethered``: it ends with its supervisor, so it is never adopted, only waited for."""

    name: str
    kind: str
    process: ProcessId
    digest: str
    log: str
    ready: bool
    tethered: bool
    variant: int = 0
    restarts: int = 0
    since_s: float = 0.0
    degraded: str = ""
    held: str = ""


class Estate(msgspec.Struct, frozen=True, kw_only=True):
    """All parts that have processes."""

    format: int = FORMAT
    parts: tuple[KeptRecord, ...] = ()


def write_estate(file: Path, parts: Iterable[KeptRecord]) -> None:
    """Replace the file at once. Raises :class:`SuperviseError`."""
    partial = file.with_name(f"{file.name}.part")
    try:
        partial.write_bytes(msgspec.json.format(msgspec.json.encode(Estate(parts=tuple(parts)))) + b"\n")
        partial.chmod(0o600)
        partial.replace(file)
    except OSError as error:
        raise SuperviseError(f"cannot write {file}: {error.strerror}") from error


def read_estate(file: Path) -> tuple[KeptRecord, ...]:
    """What an earlier supervisor left; nothing where there was none, or where it ended in order.

    Raises :class:`SuperviseError` for a file that is not understood: processes may run that it names, and starting
    others beside them would be worse than not to start.
    """
    try:
        raw = file.read_bytes()
    except FileNotFoundError:
        return ()
    except OSError as error:
        raise SuperviseError(f"cannot read {file}: {error.strerror}") from error
    try:
        estate = msgspec.json.decode(raw, type=Estate)
    except msgspec.DecodeError as error:
        raise SuperviseError(f"{file} is damaged ({error}); end what it names, if any, and remove it") from error
    if estate.format != FORMAT:
        raise SuperviseError(
            f"{file} is of format {estate.format}, expected {FORMAT}: another version of Kveik wrote it"
        )
    return estate.parts


def forget_estate(file: Path) -> None:
    """Everything has ended."""
    if file.exists():
        os.unlink(file)
