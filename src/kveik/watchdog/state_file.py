"""What a watchdog remembers over its own restart: one file, replaced as a whole, for this user and one watchdog only.

Times in memory are monotonic seconds; the file says when it was written on both clocks, so that times can be
carried over to the next boot as well. A file that is not understood is set aside: then engines are looked at as if
for the first time, and nothing is killed for it.
"""

import contextlib
import logging
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Literal

import msgspec

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.errors import WatchdogError
from kveik.lock_file import owned
from kveik.private_folder import prepare_private_folder, replace_private_file
from kveik.watchdog.healing import Healing
from kveik.watchdog.verdict import Condition, Verdict

logger = logging.getLogger("kveik.watchdog")


class Remembered(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One engine: how far its healing is, the last verdict, and its first process (0 if it cannot be seen)."""

    healing: Healing
    condition: Condition
    since_s: float
    why: str = ""
    pid: int = 0

    @property
    def verdict(self) -> Verdict:
        """The last verdict."""
        return Verdict(self.condition, self.since_s, self.why)


class _Content(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    format: Literal["kveik watchdog 1"] = "kveik watchdog 1"
    wall_s: float
    monotonic_s: float
    engines: dict[str, Remembered]


class StateFile:
    """The file of one watchdog; threads may share it."""

    def __init__(self, path: Path, clock: Clock = SYSTEM_CLOCK) -> None:
        """Own the file and read it. Raises :class:`WatchdogError` if another watchdog has it, or it cannot be used."""
        self.path = path
        self._clock = clock
        self._mutex = threading.Lock()
        self._told = ""
        prepare_private_folder(path.parent, "the watchdog's state", "fleet.state_folder", WatchdogError)
        self._lock = _own(path)
        self._engines = dict(self._read())

    def __repr__(self) -> str:
        return f"StateFile({self.path}, {len(self._engines)} engines)"

    def get(self, engine: str) -> Remembered | None:
        """What is remembered of an engine."""
        with self._mutex:
            return self._engines.get(engine)

    def put(self, engine: str, remembered: Remembered) -> None:
        """Remember this from now on. A file that cannot be written is a warning: healing matters more."""
        with self._mutex:
            self._engines[engine] = remembered
            self._write()

    def forget_others(self, engines: frozenset[str]) -> None:
        """Forget all engines but these."""
        with self._mutex:
            kept = {name: one for name, one in self._engines.items() if name in engines}
            if kept != self._engines:
                self._engines = kept
                self._write()

    def close(self) -> None:
        """Let another watchdog use the file."""
        lock, self._lock = self._lock, -1
        if lock >= 0:
            os.close(lock)

    def _read(self) -> Mapping[str, Remembered]:
        try:
            content = msgspec.json.decode(self.path.read_bytes(), type=_Content)
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise WatchdogError(f"cannot read {self.path}: {error.strerror}") from error
        except (msgspec.MsgspecError, RecursionError) as error:
            aside = self.path.with_name(f"{self.path.name}.not-understood")
            with contextlib.suppress(OSError):
                self.path.replace(aside)
            logger.warning("%s is not understood (%s); it is now %s", self.path, error, aside.name)
            return {}
        passed_s = max(0.0, self._clock.wall() - content.wall_s)
        shift_s = self._clock.monotonic() - passed_s - content.monotonic_s
        return {name: _shifted(remembered, shift_s) for name, remembered in content.engines.items()}

    def _write(self) -> None:
        content = _Content(wall_s=self._clock.wall(), monotonic_s=self._clock.monotonic(), engines=self._engines)
        try:
            replace_private_file(self.path, msgspec.json.format(msgspec.json.encode(content), indent=1))
            trouble = ""
        except OSError as error:
            trouble = f"cannot write {self.path}: {error.strerror}; a restart of the watchdog would begin anew"
        if trouble and trouble != self._told:
            logger.warning("%s", trouble)
        self._told = trouble


def _shifted(remembered: Remembered, shift_s: float) -> Remembered:
    healing = remembered.healing
    return msgspec.structs.replace(
        remembered,
        since_s=remembered.since_s + shift_s,
        healing=msgspec.structs.replace(
            healing,
            since_s=healing.since_s + shift_s,
            restarts=tuple(at_s + shift_s for at_s in healing.restarts),
        ),
    )


def _own(path: Path) -> int:
    lock_path = path.with_name(f"{path.name}.lock")
    try:
        lock = owned(lock_path)
    except OSError as error:
        raise WatchdogError(f"cannot create {lock_path}: {error.strerror}") from error
    if lock is None:
        raise WatchdogError(f"another watchdog uses {path}; stop it, or set another fleet.state_folder")
    return lock
