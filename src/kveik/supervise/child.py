"""One run of a part: a process group that this supervisor started, or one that an earlier supervisor left running."""

import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Self

from kveik.engine.group import ProcessId, identity_of, kill_group, living_members_of, shared_memory_of, signal_group
from kveik.engine.process import ServerProcess
from kveik.errors import EngineStartError
from kveik.supervise.log_file import size_of, text_since
from kveik.supervise.part import Part, Variant


class Child:
    """A process group. Nothing here waits: :attr:`gone` says when it is over, and then :meth:`reap` tidies up."""

    def __init__(
        self, identity: ProcessId, log: Path, *, log_offset: int = 0, server: ServerProcess | None = None
    ) -> None:
        self.identity = identity
        self._log = log
        self._log_offset = log_offset
        self._server = server
        self._segments: set[Path] = set()

    def __repr__(self) -> str:
        return f"Child({self.identity.pid}, {'started here' if self._server else 'adopted'})"

    @classmethod
    def start(cls, part: Part, variant: Variant, inherited: Mapping[str, str], *, tethered: bool) -> Self:
        """Start a part. Raises :class:`EngineStartError` where its command cannot be run."""
        environment = part.full_environment(inherited)
        server = ServerProcess(part.name, variant.command, environment, part.log, tethered=tethered)
        offset = size_of(part.log)
        server.start()
        identity = identity_of(server.group)
        if identity is None:  # cannot be: it was not waited for
            raise EngineStartError(f"{part.name} is not to be found after its start")
        return cls(identity, part.log, log_offset=offset, server=server)

    @classmethod
    def adopt(cls, identity: ProcessId, log: Path) -> Self | None:
        """A group that somebody else started, if any process of it is left."""
        if identity.replaced or not (identity.alive or living_members_of(identity.pid)):
            return None
        return cls(identity, log, log_offset=size_of(log))

    @property
    def pid(self) -> int:
        """Leader of the group, and its id."""
        return self.identity.pid

    @property
    def running(self) -> bool:
        """Whether its first process lives."""
        return self._server.running if self._server is not None else self.identity.alive

    @property
    def members(self) -> list[int]:
        """All of its processes that live."""
        return [] if self.identity.replaced else living_members_of(self.pid)

    @property
    def gone(self) -> bool:
        """Whether nothing of it is left."""
        return not self.running and not self.members

    @property
    def exit_code(self) -> int | None:
        """How its first process ended, negative for a signal; None while it runs, and of one that was adopted."""
        return self._server.exit_code if self._server is not None else None

    @property
    def log_text(self) -> str:
        """The end of what this run wrote."""
        return text_since(self._log, self._log_offset)

    def remember_segments(self) -> None:
        """Note its shared memory, which must be removed for it if all of it is killed at once."""
        self._segments |= shared_memory_of(self.pid)

    def terminate(self) -> None:
        """Ask the first process to end; it ends its children itself, when their work is done."""
        self.remember_segments()
        if self._server is not None:
            self._server.terminate()
        elif self.identity.alive:
            os.kill(self.pid, signal.SIGTERM)
        if not self.identity.replaced:
            signal_group(self.pid, signal.SIGCONT)  # who is stopped would hear of it only later

    def kill(self) -> None:
        """kill -9 of the whole group, and of what is left of it without its leader."""
        if not self.identity.replaced:
            self.remember_segments()
            kill_group(self.pid)

    def reap(self) -> None:
        """Tidy up after a child that is gone."""
        for segment in self._segments:
            segment.unlink(missing_ok=True)
        if self._server is not None:
            self._server.kill()
