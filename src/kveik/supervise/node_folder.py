"""Where a node of a fleet keeps what outlives its processes: sockets, logs, events, evidence, what is remembered."""

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kveik.config import FleetSettings


@dataclass(frozen=True, slots=True)
class NodeFolder:
    """The folder of one node and the files in it. Nothing is made here."""

    root: Path

    @property
    def control_socket(self) -> Path:
        """Where the supervisor listens."""
        return self.root / "control.sock"

    @property
    def agent_socket(self) -> Path:
        """Where the node's agent listens, unless another place is set."""
        return self.root / "agent.sock"

    @property
    def logs(self) -> Path:
        """Folder of the logs."""
        return self.root / "logs"

    def log(self, name: str) -> Path:
        """The log of one part."""
        return self.logs / f"{name}.log"

    def pulse(self, name: str) -> Path:
        """The sign of life of one part."""
        return self.root / f"{name}.pulse"

    @property
    def events(self) -> Path:
        """Events, one JSON object a line."""
        return self.root / "events.jsonl"

    @property
    def evidence(self) -> Path:
        """Folder of what the watchdog saved before it restarted something."""
        return self.root / "evidence"

    @property
    def watchdog(self) -> Path:
        """What the watchdog remembers."""
        return self.root / "watchdog.json"

    @property
    def starts(self) -> Path:
        """How long earlier starts took."""
        return self.root / "starts.json"

    @property
    def supervisor(self) -> Path:
        """Which processes run, for the next supervisor."""
        return self.root / "supervisor.json"

    @property
    def registry(self) -> Path:
        """The router's registry, unless another place is set."""
        return self.root / "fleet.json"


def node_folder(settings: FleetSettings, node: str, environ: Mapping[str, str] = os.environ) -> NodeFolder:
    """The folder of a node: ``fleet.state_folder``, or the user's state folder by the fleet's name."""
    if settings.state_folder:
        return NodeFolder(Path(settings.state_folder).expanduser().absolute() / node)
    state = environ.get("XDG_STATE_HOME") or str(Path(environ.get("HOME", "~")).expanduser() / ".local" / "state")
    return NodeFolder(Path(state) / "kveik" / settings.name / node)
