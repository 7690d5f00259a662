"""Stay attached to the agent: try again for as long as it takes, and never make anybody wait."""

import functools
import threading
from collections.abc import Callable, Mapping

from kveik.agent.client import AgentClient, default_socket_path
from kveik.errors import AgentError, KveikError
from kveik.records import Listener, StateRecord, ignore

RETRY_MIN_S = 0.5
RETRY_MAX_S = 5.0

#: How ``on_attach`` says that it cannot use a client now: Kveik's errors, the system's, and those of
#: devices (torch raises ``RuntimeError``). Anything else is a mistake in the program and ends the link.
_REFUSALS = (KveikError, OSError, RuntimeError)


class AgentLink:
    """A background thread that keeps a connection to the agent.

    ``client`` is the attached client, or None. ``on_attach`` gets each new client before it is
    shown, and may raise :class:`KveikError`, ``OSError`` or ``RuntimeError`` to be asked again with a
    later one; ``on_detach`` gets one whose connection broke, which the link closes afterwards. ``on_beat``
    gets the attached one every ``RETRY_MIN_S`` seconds and must not raise. All run on the link's thread.
    An old arena stays mapped until its last slice is dropped.
    """

    def __init__(
        self,
        socket_path: str = "",
        *,
        role: str,
        label: str = "",
        facts: Mapping[str, str] | None = None,
        prefault: bool = True,
        on_attach: Callable[[AgentClient], None] | None = None,
        on_detach: Callable[[AgentClient], None] | None = None,
        on_beat: Callable[[AgentClient], None] | None = None,
        listener: Listener = ignore,
    ) -> None:
        self.client: AgentClient | None = None
        self._path = socket_path or default_socket_path()
        self._connect: Callable[[], AgentClient] = functools.partial(
            AgentClient.connect, self._path, role=role, label=label, facts=facts, prefault=prefault
        )
        self._on_attach = on_attach
        self._on_detach = on_detach
        self._on_beat = on_beat
        self._listener = listener
        self._stop = threading.Event()
        self._changed = threading.Condition()
        self._unsettled: list[AgentClient] = []
        self._last_problem = ""
        self._thread = threading.Thread(target=self._run, name="kveik-agent-link", daemon=True)

    def start(self) -> "AgentLink":
        """Begin to attach, in the background."""
        self._thread.start()
        return self

    def wait_attached(self, seconds: float) -> bool:
        """Wait until a client is attached; False if that took longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self.client is not None, seconds)

    def close(self) -> None:
        """Detach and stop. Leases end with the connection."""
        self._stop.set()
        client = self.client
        if client is not None:
            client.disconnect()  # wakes the thread, which waits for the connection to break
        if self._thread.is_alive() and self._thread is not threading.current_thread():
            self._thread.join(timeout=10.0)

    def __repr__(self) -> str:
        return f"AgentLink({self._path}, {'attached' if self.client else 'detached'})"

    def _run(self) -> None:
        pause_s = RETRY_MIN_S
        while not self._stop.is_set():
            client = self._attach()
            if client is None:
                self._stop.wait(pause_s)
                pause_s = min(2 * pause_s, RETRY_MAX_S)
                continue
            pause_s = RETRY_MIN_S
            while not client.broken.wait(RETRY_MIN_S) and not self._stop.is_set():
                self._settle(client)
                if self._on_beat is not None:
                    self._on_beat(client)
            self._detach(client)

    def _attach(self) -> AgentClient | None:
        try:
            client = self._connect()
        except AgentError as error:
            self._tell_problem(str(error))
            return None
        try:
            if self._on_attach is not None:
                self._on_attach(client)
        except _REFUSALS as error:
            # The device may take the arena at the next attempt.
            client.close()
            self._tell_problem(f"attaching failed: {error!r}")
            return None
        self._last_problem = ""
        self._show(client)
        self._listener(StateRecord("agent link", "detached", "attached", f"agent {client.welcome.agent_id}"))
        return client

    def _tell_problem(self, problem: str) -> None:
        if problem != self._last_problem:  # once, not every few seconds
            self._last_problem = problem
            self._listener(StateRecord("agent link", "detached", "detached", problem))

    def _detach(self, client: AgentClient) -> None:
        self._show(None)
        if self._on_detach is not None:
            self._on_detach(client)
        why = "stopped" if self._stop.is_set() else str(client)
        client.close()
        self._unsettled.append(client)
        self._listener(StateRecord("agent link", "attached", "detached", why))

    def _show(self, client: AgentClient | None) -> None:
        with self._changed:
            self.client = client
            self._changed.notify_all()

    def _settle(self, client: AgentClient) -> None:
        """Tell the agent which earlier connections have no copy under way any more."""
        settled = [old for old in self._unsettled if old.settled]
        if settled:
            client.settle([old.connection for old in settled])
            self._unsettled = [old for old in self._unsettled if old not in settled]
