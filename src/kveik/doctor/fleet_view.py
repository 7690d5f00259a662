"""The running fleet as all checks see it: read once, with limits, by all who answer.

:class:`Fleet` is what a context has; :meth:`Fleet.view` reads at the first call and gives the same to all. Engines get
one request for one token, because some tell their namespace only then.
"""

import contextlib
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar
from urllib.parse import urlsplit

import msgspec
import psutil

from kveik.agent.client import AgentClient
from kveik.clock import Deadline
from kveik.doctor.environment_read import environment_of
from kveik.doctor.fleet_described import DescribedEngine, DescribedFleet
from kveik.doctor.network_cards import own_addresses
from kveik.doctor.server_time import ClockOffset, ask_time
from kveik.engine.client import CompletionRequest, EngineClient, ServedModel
from kveik.engine.metrics import Metric, MetricsSnapshot
from kveik.engine.process import ports_listened_at
from kveik.errors import AdmissionError, ConfigError, DoctorError, EngineError, FleetError, KveikError
from kveik.fleet.client import FleetClient
from kveik.fleet.status import NodeStatus

#: How long each single answer may take. A first token may wait for requests before it.
ANSWER_S, TOKEN_S = 3.0, 20.0
_THREADS = 16
_Asked = TypeVar("_Asked")
_Told = TypeVar("_Told")


@dataclass(frozen=True, slots=True)
class SeenEngine:
    """One engine as it answered. ``trouble``: why it did not, then nothing else is known of it.

    ``state``: the fleet's word for it, empty if no router knows it. ``no_token``: why it made no token when it was
    asked for one, and ``works``: it computed for others meanwhile. ``pid`` and ``environ``: its server process and what
    that was started with, where it runs on this machine and may be looked at.
    """

    described: DescribedEngine
    trouble: str = ""
    state: str = ""
    why: str = ""
    models: tuple[ServedModel, ...] = ()
    version: str = ""
    metrics: MetricsSnapshot | None = None
    no_token: str = ""
    works: bool = False
    clock: ClockOffset | None = None
    pid: int = 0
    environ: Mapping[str, str] | None = None
    command: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """Its name in the fleet."""
        return self.described.name

    @property
    def model(self) -> str:
        """The name of the model that it serves; empty if it did not answer."""
        return self.models[0].name if self.models else ""

    @property
    def max_model_tokens(self) -> int:
        """Longest prompt and answer; 0 if it does not say."""
        return self.models[0].max_model_tokens if self.models else 0


@dataclass(frozen=True, slots=True)
class SeenRouter:
    """One router: its members by name, as it shows them, or why it did not answer, or not to us (``locked``)."""

    url: str
    members: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    registry_trouble: str = ""
    trouble: str = ""
    locked: str = ""

    @property
    def shows(self) -> bool:
        """Whether it told who is in the fleet."""
        return not self.trouble and not self.locked


@dataclass(frozen=True, slots=True)
class SeenAgent:
    """This node's agent: what ``kveik stats`` shows, or why it did not answer."""

    socket: str
    state: Mapping[str, Any] | None = None
    trouble: str = ""

    def facts(self, namespace: str) -> Mapping[str, str]:
        """The facts of a namespace, given by its digest in hex; none if it does not know them."""
        entries = (self.state or {}).get("namespaces", ())
        return next((dict(entry["facts"]) for entry in entries if entry["digest"] == namespace), {})


@dataclass(frozen=True, slots=True)
class FleetView:
    """Everything that answered and did not. ``agent`` is None where this node needs none."""

    engines: tuple[SeenEngine, ...]
    routers: tuple[SeenRouter, ...]
    agent: SeenAgent | None

    @property
    def answering(self) -> tuple[SeenEngine, ...]:
        """The engines that answered."""
        return tuple(engine for engine in self.engines if not engine.trouble)

    @property
    def is_up(self) -> bool:
        """Whether anything of the fleet answers at all."""
        return bool(self.answering) or any(not router.trouble for router in self.routers)

    def by_model(self) -> dict[str, tuple[SeenEngine, ...]]:
        """The engines that answered, by the model that they serve."""
        models = dict.fromkeys(engine.model for engine in self.answering)
        return {model: tuple(one for one in self.answering if one.model == model) for model in models}


class Fleet:
    """What is described, and what is there: :meth:`view`. ``api_key`` is for engines; ``token``, for routers, is asked.

    ``asks``: false to look at this machine's processes only, and ask nobody. Thread-safe: checks that were left behind
    may still read.
    """

    def __init__(
        self, described: DescribedFleet, *, api_key: str = "", token: Callable[[], str] = str, asks: bool = True
    ) -> None:
        self._asks = asks
        self.described = described
        self._api_key = api_key
        self._token = token
        self._lock = threading.Lock()
        self._view: FleetView | None = None

    def __repr__(self) -> str:
        return f"Fleet({self.described.source}, {len(self.described.engines)} engines described)"

    def view(self) -> FleetView:
        """The fleet now, or as it was when it was asked for first."""
        with self._lock:
            if self._view is None:
                self._view = self._read()
            return self._view

    def client(self, engine: DescribedEngine, deadline_s: float = ANSWER_S) -> EngineClient:
        """A client for an engine, with the key."""
        return EngineClient(
            engine.url, read_timeout_s=deadline_s, connect_timeout_s=min(deadline_s, ANSWER_S), api_key=self._api_key
        )

    def router(self, url: str, deadline_s: float = ANSWER_S) -> FleetClient:
        """A client for a router, with the token. Raises :class:`ConfigError` for what is no address."""
        return FleetClient(url, token=self._token, deadline_s=deadline_s)

    def nodes_at(self, router: str) -> Sequence[NodeStatus]:
        """What nodes reported to a router; nothing if it does not answer, which the check ``answers`` tells."""
        try:
            return self.router(router).status().nodes
        except KveikError:
            return ()

    def _read(self) -> FleetView:
        described = self.described
        listening = listeners()
        if not self._asks:
            return FleetView(tuple(_process_of(engine, listening) for engine in described.here), (), None)
        routers = together(self._router, described.routers)
        known = _merged(described.engines, routers)
        seen = together(lambda engine: self._engine(engine, listening), known)
        agent = _agent(described.agent_socket) if described.agent_socket else None
        return FleetView(tuple(_with_state(engine, routers) for engine in seen), tuple(routers), agent)

    def _router(self, url: str) -> SeenRouter:
        try:
            shown = self.router(url).engines()
        except AdmissionError as error:
            return SeenRouter(url, locked=str(error))
        except (FleetError, ConfigError) as error:
            return SeenRouter(url, trouble=str(error))
        members = {str(member.get("engine_id", "")): member for member in shown.get("data", ())}
        return SeenRouter(url, members, str(shown.get("trouble", "")))

    def _engine(self, engine: DescribedEngine, listening: Mapping[int, int]) -> SeenEngine:
        try:
            client = self.client(engine)
            models = client.models()
        except EngineError as error:
            return SeenEngine(engine, trouble=str(error))
        version, metrics = "", None
        with contextlib.suppress(EngineError):
            version = client.version()
        before = _tokens(client)
        no_token = self._one_token(engine, models[0].name)
        with contextlib.suppress(EngineError):
            metrics = client.metrics()
        return replace(
            _process_of(engine, listening), models=models, version=version, metrics=metrics, no_token=no_token,
            works=_tokens_of(metrics) > before, clock=ask_time(engine.url, ANSWER_S),
        )  # fmt: skip

    def _one_token(self, engine: DescribedEngine, model: str) -> str:
        """Why it makes no token; empty if it does."""
        try:
            self.client(engine, TOKEN_S).complete(CompletionRequest((1, 2, 3), max_tokens=1), model)
        except EngineError as error:
            return str(error)
        return ""


def _tokens(client: EngineClient) -> float:
    """How many tokens an engine has worked on; 0 if it does not say."""
    try:
        return _tokens_of(client.metrics())
    except EngineError:
        return 0.0


def _tokens_of(metrics: MetricsSnapshot | None) -> float:
    counters = (Metric.PROMPT_TOKENS, Metric.OUTPUT_TOKENS, Metric.ITERATIONS)
    try:
        return sum(metrics.total(counter) for counter in counters) if metrics else 0.0
    except EngineError:  # no finite numbers
        return 0.0


def together(ask: Callable[[_Asked], _Told], whom: Iterable[_Asked]) -> list[_Told]:
    """Ask all at once; the answers in order."""
    with ThreadPoolExecutor(_THREADS) as pool:
        return list(pool.map(ask, whom))


def _merged(engines: Sequence[DescribedEngine], routers: Sequence[SeenRouter]) -> tuple[DescribedEngine, ...]:
    """The described engines that can be asked, with what routers know of them, and those that only routers know."""
    found = {engine.name: engine for engine in engines if not engine.headless}
    by_url = {engine.url: engine.name for engine in found.values()}
    for router in routers:
        for name, member in router.members.items():
            url, labels = str(member.get("url", "")), member.get("labels") or {}
            known = found.get(by_url.get(url, name))
            if known is None:
                known = DescribedEngine(name, url, node=labels.get("node", ""), model=labels.get("model_path", ""))
            if not known.events and member.get("events"):
                known = replace(known, events=str(member["events"]))
            found[known.name] = known
    return tuple(found.values())


def _with_state(engine: SeenEngine, routers: Sequence[SeenRouter]) -> SeenEngine:
    """With the first router's word for it."""
    for router in routers:
        for name, member in router.members.items():
            if name == engine.name or member.get("url") == engine.described.url:
                return replace(engine, state=str(member.get("state", "")), why=str(member.get("why", "")))
    return engine


def _agent(socket: str) -> SeenAgent:
    try:
        client = AgentClient.connect(socket, role="stats", deadline_s=ANSWER_S, prefault=False)
        try:
            return SeenAgent(socket, client.stats(Deadline.after(ANSWER_S)))
        finally:
            client.close()
    except (KveikError, msgspec.DecodeError) as error:
        return SeenAgent(socket, trouble=str(error))


def listeners() -> dict[int, int]:
    """Which process listens on each TCP port of this machine, as far as it may be seen."""
    with contextlib.suppress(psutil.Error, OSError):
        return {port: pid for port, pid in ports_listened_at() if pid}
    return {}


def _process_of(engine: DescribedEngine, listening: Mapping[int, int]) -> SeenEngine:
    """The engine with its process, if that runs on this machine."""
    pid = listening.get(engine.port, 0) if engine.host in own_addresses() else 0
    environ, command = _process(pid)
    return SeenEngine(engine, pid=pid, environ=environ, command=command)


def _process(pid: int) -> tuple[Mapping[str, str] | None, tuple[str, ...]]:
    """What a process was started with: variables, and command line; nothing where it may not be looked at."""
    if not pid:
        return None, ()
    environ: Mapping[str, str] | None = None
    with contextlib.suppress(DoctorError):
        environ = environment_of(pid) or None
    try:
        return environ, tuple(psutil.Process(pid).cmdline())
    except psutil.Error:
        return environ, ()


def named_engines(urls: Sequence[str]) -> tuple[DescribedEngine, ...]:
    """Engines of which only the address is known; they are named by host and port. Raises :class:`ConfigError`."""
    engines = []
    for url in urls:
        try:
            address = EngineClient(url).url
        except EngineError as error:
            raise ConfigError(str(error)) from error
        engines.append(DescribedEngine(urlsplit(address).netloc, address))
    return tuple(engines)
