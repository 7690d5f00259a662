"""The watchdog of one node: who is there, a thread for each engine, a thread for each router, and the node's report.

What can hang has a thread of its own: an engine holds only who watches it, a router only who talks to it. The node's
loop asks the supervisor and the agent on this machine, with short deadlines.
"""

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from kveik.agent.client import AgentClient
from kveik.clock import SYSTEM_CLOCK, Clock, Deadline
from kveik.config_fleet import WatchdogSettings
from kveik.errors import AgentError, ConfigError, FleetError, SuperviseError
from kveik.fleet.client import FleetClient
from kveik.fleet.report import EngineReport, EventReport, NodeReport, TierReport
from kveik.pulse import Pulse
from kveik.supervise.client import ControlClient
from kveik.supervise.messages import ProcessView
from kveik.telemetry.events import EventLog, last_events
from kveik.watchdog.announcing import RouterView, look_at_router
from kveik.watchdog.device_memory import DeviceMemory
from kveik.watchdog.evidence import EvidenceFolder
from kveik.watchdog.own_checks import OwnChecks
from kveik.watchdog.reference import References
from kveik.watchdog.reporting import Reading, engine_report, part_reports, tier_reports
from kveik.watchdog.state_file import StateFile
from kveik.watchdog.verdict import Condition
from kveik.watchdog.ward import Patient, Status, Ward
from kveik.watchdog.watch import Watch

logger = logging.getLogger("kveik.watchdog")

STATUS_PERIOD_S = 0.5
STATUS_DEADLINE_S = 3.0
AGENT_DEADLINE_S = 1.0
#: Events that a report carries.
EVENTS_SHOWN = 20
#: So long the end waits for threads that are in the middle of something; what was begun is remembered.
END_S = 5.0


@dataclass(frozen=True, slots=True)
class NodePlace:
    """Which node this is, and where its supervisor and its agent listen; empty: there is none."""

    fleet: str
    node: str
    control_socket: str = ""
    agent_socket: str = ""


class NodeWatchdog:
    """Watches all engines of a node: :meth:`run`, until somebody stops it.

    ``patients`` says which engines there are, each time it is asked; it may raise :class:`ConfigError`, and then all
    stays as it is. ``own_checks``: the command that makes the doctor's checks of this machine.
    """

    def __init__(
        self,
        place: NodePlace,
        settings: WatchdogSettings,
        patients: Callable[[Mapping[str, ProcessView]], Sequence[Patient]],
        *,
        routers: Sequence[FleetClient],
        state: StateFile,
        evidence: EvidenceFolder,
        events: EventLog,
        references: References | None = None,
        own_checks: Sequence[str] = (),
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:  # fmt: skip
        self.place = place
        self._settings = settings
        self._patients = patients
        self._clock = clock
        self._control = ControlClient(place.control_socket, deadline_s=STATUS_DEADLINE_S)
        self._status: Status | None = None
        self._agent = _AgentLine(place.agent_socket)
        self._lines = [_RouterLine(router, settings.report_period_s, clock) for router in routers]
        self._ward = Ward(
            node=place.node, settings=settings, state=state, evidence=evidence, events=events,
            references=references or References(), routers=routers, views=self._views, status=lambda: self._status,
            devices=DeviceMemory(clock=clock), clock=clock,
        )  # fmt: skip
        self._watches: dict[str, _Watched] = {}
        self._own_checks = OwnChecks(own_checks, settings.checks_period_s, clock)
        self._report_due_s = 0.0
        self._trouble: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"NodeWatchdog({self.place.node}, {len(self._watches)} engines)"

    @property
    def watches(self) -> Mapping[str, Watch]:
        """The watches by the engine's name."""
        return {name: watched.watch for name, watched in self._watches.items()}

    def run(self, stop: threading.Event) -> None:
        """Watch until ``stop`` is set. Engines stay as they are then."""
        pulse = Pulse.asked_for()
        for line in self._lines:
            line.start()
        try:
            while True:
                try:
                    self.step()
                    pulse.beat()
                except Exception:  # supervision: engines that joined would never be watched
                    logger.exception("looking after the node failed; it goes on")
                if stop.wait(STATUS_PERIOD_S):
                    return
        finally:
            self.close()

    def step(self) -> None:
        """Ask who is there, and report when it is time."""
        self._ask_supervisor()
        self._keep_watches()
        now_s = self._clock.monotonic()
        if now_s >= self._report_due_s:
            self._report_due_s = now_s + self._settings.report_period_s
            report = self.report()
            for line in self._lines:
                line.report = report

    def report(self) -> NodeReport:
        """The node as it is now."""
        status = self._status
        return NodeReport(
            node=self.place.node,
            fleet=self.place.fleet,
            at_s=round(self._clock.wall(), 3),
            engines=tuple(watched.report(status) for watched in self._watches.values()),
            tiers=self._agent.tiers(self._clock.monotonic()),
            parts=part_reports(tuple(status.processes.values())) if status is not None else (),
            events=tuple(
                EventReport(at_s=event.at_s, part=event.part, told=event.told)
                for event in last_events(self._ward.events.path, EVENTS_SHOWN)
            ),
            own_checks=self._own_checks(starting=self._starts()),
        )

    def _starts(self) -> bool:
        """Whether an engine is starting, or the supervisor has not said yet whether there are any."""
        if self.place.control_socket and self._status is None:
            return True
        return any(watched.watch.verdict.condition is Condition.STARTING for watched in self._watches.values())

    def close(self) -> None:
        """Watch no longer; what was begun with an engine is remembered, and its requests go on."""
        running: list[_Watched | _RouterLine] = [*self._watches.values(), *self._lines]
        for one in running:
            one.stop.set()
        deadline = Deadline.after(END_S)
        for thread in [one.thread for one in running]:
            if thread.ident is not None:
                thread.join(deadline.remaining_s)
        self._agent.close()

    def _views(self) -> Mapping[str, RouterView]:
        return {line.client.url: line.view for line in self._lines if line.view is not None}

    def _ask_supervisor(self) -> None:
        if not self.place.control_socket:
            return
        asked_s = self._clock.monotonic()
        try:
            answer = self._control.status()
        except SuperviseError as error:  # what it said last still holds: its engines run on without it
            self._say("supervisor", f"{error}; engines are watched all the same")
            return
        self._say("supervisor", "")
        self._status = Status(asked_s, {process.name: process for process in answer.processes})

    def _keep_watches(self) -> None:
        try:
            wanted = {one.name: one for one in self._patients(self._status.processes if self._status else {})}
        except ConfigError as error:
            self._say("configuration", f"{error}; the engines that were there before are watched on")
            return
        self._say("configuration", "")
        for name, watched in tuple(self._watches.items()):
            if name not in wanted or wanted[name].identity != watched.watch.patient.identity:
                watched.stop.set()
                if not watched.thread.is_alive():  # only one at a time has an engine in its hands
                    del self._watches[name]
        for name, patient in wanted.items():
            if name not in self._watches:
                self._watches[name] = _Watched(Watch(patient, self._ward))

    def _say(self, what: str, trouble: str) -> None:
        """Log trouble when it is news, and its end."""
        before = self._trouble.get(what, "")
        if trouble and trouble != before:
            logger.warning("%s", trouble)
        elif before and not trouble:
            logger.info("%s: all is well again", what)
        self._trouble[what] = trouble


class _Watched:
    """A watch on its thread, and what its report was before."""

    def __init__(self, watch: Watch) -> None:
        self.watch = watch
        self.stop = threading.Event()
        self.thread = threading.Thread(
            target=watch.run, args=(self.stop,), name=f"watch-{watch.patient.name}", daemon=True
        )
        self._before: Reading | None = None
        self.thread.start()

    def report(self, status: Status | None) -> EngineReport:
        watch, metrics = self.watch, self.watch.eyes.metrics
        newest = watch.newest
        at_s = newest.at_s if newest is not None else 0.0
        now = Reading(at_s, metrics) if metrics is not None else None
        processes = newest.processes if newest is not None else None
        report = engine_report(
            watch.patient.name,
            watch.verdict,
            before=self._before,
            now=now,
            view=status.processes.get(watch.patient.name) if status is not None else None,
            resident_bytes=processes.resident_bytes if processes is not None else None,
            warnings=watch.warnings,
            told=watch.told,
        )
        if now is not None and (self._before is None or now.metrics is not self._before.metrics):
            self._before = now
        return report


class _RouterLine:
    """Talks to one router on a thread: asks what it shows, and tells it how the node is."""

    def __init__(self, client: FleetClient, period_s: float, clock: Clock) -> None:
        self.client = client
        self.view: RouterView | None = None
        self.report: NodeReport | None = None
        self.stop = threading.Event()
        self._period_s = period_s
        self._clock = clock
        self._trouble = ""
        self.thread = threading.Thread(target=self._talk, name=f"router-{client.host}", daemon=True)

    def start(self) -> None:
        self.thread.start()

    def _talk(self) -> None:
        while not self.stop.wait(self._period_s / 2):
            try:
                self.view = look_at_router(self.client, self._clock)
                report, self.report = self.report, None
                if report is not None:
                    self.client.report(report)
                trouble = ""
            except (FleetError, ConfigError) as error:  # what it showed last still holds: people's holds, above all
                trouble = str(error)
            if trouble and not self._trouble:
                logger.warning("router %s: %s; it is tried again", self.client.url, trouble)
            elif self._trouble and not trouble:
                logger.info("router %s answers again", self.client.url)
            self._trouble = trouble


class _AgentLine:
    """Asks the node's agent for its state over a connection that is kept."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._client: AgentClient | None = None
        self._before: tuple[float, Mapping[str, object]] | None = None

    def tiers(self, now_s: float) -> tuple[TierReport, ...]:
        """The tiers now; none while no agent answers."""
        if not self._socket:
            return ()
        try:
            if self._client is None:
                self._client = AgentClient.connect(
                    self._socket, role="watchdog", deadline_s=AGENT_DEADLINE_S, prefault=False
                )
            state = self._client.stats(Deadline.after(AGENT_DEADLINE_S))
        except AgentError:
            self.close()
            return ()
        before, self._before = self._before, (now_s, state)
        return tier_reports(state, before[1], now_s - before[0]) if before is not None else tier_reports(state)

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()
