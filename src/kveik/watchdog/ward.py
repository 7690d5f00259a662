"""What a watch looks after, and what all watches of a node share: values."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config_fleet import WatchdogSettings
from kveik.engine.device_tools import DeviceUse
from kveik.fleet.announcement import EngineAnnouncement
from kveik.fleet.client import FleetClient
from kveik.supervise.messages import ProcessView
from kveik.telemetry.events import EventLog
from kveik.watchdog.announcing import RouterView
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.reference import References
from kveik.watchdog.restarters import Restarter
from kveik.watchdog.state_file import StateFile


@dataclass(frozen=True, slots=True)
class Patient:
    """One engine to watch. ``url``: as the watchdog reaches it.

    ``words``: its announcement, but for what it says itself; None for an engine that the routers have from a list.
    ``order_s``: how long an order to restart it may be on its way to whoever carries it out. ``roll``: the command that
    restarts it without a lost request; empty: there is none.
    """

    name: str
    url: str
    restarter: Restarter
    words: EngineAnnouncement | None = None
    start_s: float = 1800.0
    order_s: float = 0.0
    roll: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)

    @property
    def identity(self) -> tuple[object, ...]:
        """Differs where another watch is needed."""
        return self.name, self.url, repr(self.restarter), self.words, self.start_s, self.roll, self.api_key


@dataclass(frozen=True, slots=True)
class Status:
    """What a supervisor said of its parts, and when it was asked (monotonic seconds)."""

    asked_s: float
    processes: Mapping[str, ProcessView]


@dataclass(frozen=True, slots=True)
class Ward:
    """What all watches of a node share.

    ``status``: the supervisor's last word, None without a supervisor. ``devices``: what is known of their memory.
    """

    node: str
    settings: WatchdogSettings
    state: StateFile
    evidence: EvidenceFolder
    events: EventLog
    references: References
    routers: Sequence[FleetClient]
    views: Callable[[], Mapping[str, RouterView]]
    status: Callable[[], Status | None]
    devices: Callable[[], DeviceUse] = DeviceUse
    clock: Clock = SYSTEM_CLOCK
