"""One node's agent from its settings: arena, tiers, service and server, started and stopped together."""

import contextlib
import os
import socket
import threading

from kveik.agent.block_fates import BlockFates
from kveik.agent.client import default_socket_path
from kveik.agent.request_book import RequestBook
from kveik.agent.server import AgentServer
from kveik.agent.service import AgentService
from kveik.agent.tally import Tally
from kveik.agent.tiers import KINDS, TierContext, tier_names
from kveik.breaker import BreakerPolicy
from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config import AgentSettings, StoreSettings
from kveik.records import Listener, Record, StateRecord, ignore
from kveik.store.arena import Arena
from kveik.store.arena_file import ArenaRequest, open_arena_file
from kveik.store.probing import TierProbes
from kveik.store.roll_call import Roster
from kveik.store.roll_calling import RollCalls
from kveik.store.tiered import LowerTiers

#: No store beyond this machine.
NO_STORES = StoreSettings()


def default_arena_path() -> str:
    """Where the arena of this user lies unless told otherwise: shared memory, so that it survives the agent."""
    return f"/dev/shm/kveik-{os.getuid()}.arena"  # noqa: S108


class NodeAgent:
    """A running agent. Raises a :class:`kveik.errors.KveikError` that says why if it cannot start.

    ``listener`` gets every record; :attr:`tally` counts them too.
    """

    def __init__(
        self,
        settings: AgentSettings,
        stores: StoreSettings = NO_STORES,
        *,
        listener: Listener = ignore,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.socket_path = settings.socket or default_socket_path()
        self.tally = Tally()
        self._fates = BlockFates(clock)
        self._listener = listener
        self._stop = threading.Event()
        with contextlib.ExitStack() as undo:
            self.arena = self._open_arena(settings, clock)
            undo.callback(self.arena.close)
            self.lower = self._open_tiers(settings, stores, clock)
            undo.callback(self.lower.close)
            self._probes = TierProbes(
                self.lower.guards,
                period_s=settings.probe_period_s,
                deadline_s=settings.tier_deadline_s,
                clock=clock,
            )
            self._roll_calls = RollCalls(
                self.lower.guards,
                self._roster(settings),
                period_s=settings.probe_period_s,
                deadline_s=settings.tier_deadline_s,
                clock=clock,
            )
            self.lower.tell_more("roll_call", self._roll_calls.plain)
            self.service = AgentService(
                self.arena, self.lower,
                listener=self._tell, tally=self.tally, clock=clock, admission=settings.admission,
                fates=self._fates, requests=RequestBook(settings.funnel_requests),
            )  # fmt: skip
            self._server = AgentServer(self.service, self.socket_path)
            undo.pop_all()
        self._prefault = threading.Thread(target=self._fault_pages_in, name="kveik-prefault", daemon=True)

    def start(self) -> "NodeAgent":
        """Serve from now on, in the background."""
        self._prefault.start()
        self._probes.start()
        self._roll_calls.start()
        self._server.start()
        return self

    def close(self) -> None:
        """Stop serving. Committed blocks stay in the arena for the next agent."""
        self._stop.set()
        self._server.close()
        self._probes.close()
        self._roll_calls.close()
        self.lower.close()
        if self._prefault.is_alive():  # not if the agent was never started
            self._prefault.join()
        self.arena.close()

    def _tell(self, record: Record) -> None:
        self.tally(record)
        self._fates(record)
        self._listener(record)

    def _roster(self, settings: AgentSettings) -> Roster:
        """Who is to be seen in shared tiers. A node without a name is seen by itself alone."""
        unnamed = f"{socket.gethostname()} {os.path.abspath(self.socket_path)}"
        return Roster.of(settings.fleet, settings.node or unnamed, settings.nodes)

    def _open_arena(self, settings: AgentSettings, clock: Clock) -> Arena:
        path = settings.arena or default_arena_path()
        file = open_arena_file(
            ArenaRequest(path, settings.arena_bytes, settings.slab_bytes, huge_pages=settings.huge_pages)
        )
        for note in file.notes:
            self._tell(StateRecord("arena file", "expected", "changed", note))
        arena = Arena(file, listener=self._tell, clock=clock)
        found = arena.recovered
        what = f"{path}: {file.layout.arena_bytes} bytes in {file.layout.slab_count} slabs"
        if found.blocks or found.being_written:
            what += (
                f"; found {len(found.blocks)} blocks of an earlier agent in {found.seconds:.3f} s, "
                f"{len(found.being_written)} slots may still be written"
            )
        self._tell(StateRecord("arena", "closed", "ready", what))
        return arena

    def _open_tiers(self, settings: AgentSettings, stores: StoreSettings, clock: Clock) -> LowerTiers:
        file = self.arena.file
        context = TierContext(settings, stores, file.view, self._tell, clock, file.open_for_client)
        kinds = [KINDS[name] for name in tier_names(settings, stores)]
        return LowerTiers(
            [kind.open(context) for kind in kinds],
            threads=[kind.threads(settings, stores) for kind in kinds],
            # Queued blocks are pinned: they must leave room for new ones.
            queue_bytes=min(settings.cascade_queue_bytes, self.arena.file.layout.arena_bytes // 4),
            listener=self._tell,
            clock=clock,
            policy=BreakerPolicy(settings.breaker_failures, settings.breaker_open_s, settings.breaker_open_max_s),
            hang_s=settings.tier_deadline_s,
            write_bytes_per_s=settings.cascade_bytes_per_s,
        )

    def _fault_pages_in(self) -> None:
        size = self.arena.file.layout.arena_bytes
        complete = self.arena.file.mapping.populate(self._stop)
        if complete:
            self._tell(StateRecord("arena", "ready", "warm", f"all {size} bytes are faulted in"))
        elif not self._stop.is_set():
            self._tell(StateRecord("arena", "ready", "cold", "this kernel does not fault pages in ahead"))
