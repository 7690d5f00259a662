"""One node of a fleet on this machine: where its things are, who supervises it, and how that is made."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kveik.errors import SuperviseError
from kveik.launch.fleet_spec import FleetSpec, read_nodes
from kveik.launch.ladder import why_it_failed
from kveik.records import Listener
from kveik.supervise.backoff import Pauses
from kveik.supervise.client import ControlClient
from kveik.supervise.keeper import Surroundings
from kveik.supervise.last_words import ending
from kveik.supervise.messages import StatusAnswer
from kveik.supervise.node_folder import NodeFolder, node_folder
from kveik.supervise.supervisor import Describe, NodeIdentity, Supervisor


@dataclass(frozen=True, slots=True)
class Place:
    """A node, found by ``[fleet]`` and ``[[nodes]]`` alone; :class:`~kveik.launch.up.Launch` knows the rest, too."""

    config: Path
    spec: FleetSpec
    folder: NodeFolder

    @classmethod
    def find(cls, config: Path, node: str, environ: Mapping[str, str]) -> Self:
        """The node that this machine is. Raises :class:`~kveik.errors.ConfigError`."""
        spec = read_nodes(config, environ, {"node": node} if node else None)
        return cls(config.absolute(), spec, node_folder(spec.settings, spec.node.name, environ))

    @property
    def node(self) -> str:
        """The node's name."""
        return self.spec.node.name

    @property
    def control(self) -> ControlClient:
        """The node's supervisor."""
        return ControlClient(str(self.folder.control_socket))

    def status(self) -> StatusAnswer | None:
        """What the supervisor says; None if there is none. Raises :class:`SuperviseError` if it does not answer."""
        if not self.folder.control_socket.exists():
            return None
        try:
            return self.control.status()
        except SuperviseError as error:
            if isinstance(error.__cause__, ConnectionError | FileNotFoundError):  # it ended, or ends just now
                return None
            raise

    def make_supervisor(self, describe: Describe, listener: Listener, *, tethered: bool) -> Supervisor:
        """A supervisor for this node, not open yet."""
        fleet = self.spec.settings
        identity = NodeIdentity(fleet.name, self.node, self.config, self.folder, fleet.log_bytes_max)
        pauses = Pauses(fleet.restart_pause_s, fleet.restart_pause_max_s)
        around = Surroundings(pauses, tethered=tethered, listener=listener, judge=_judge_start)
        return Supervisor(identity, describe, around)


def _judge_start(log: str, exit_code: int | None) -> tuple[bool, str]:
    failure = why_it_failed(log, exit_code)
    return failure.simpler_may_help, f"{ending(exit_code)}: {failure.reason}"
