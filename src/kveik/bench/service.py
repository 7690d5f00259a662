"""A running fleet as a measurement sees it: one address, and engines that can be chosen and killed."""

import contextlib
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from kveik.bench.clients import SteadyClients, Tally
from kveik.engine.client import EngineClient
from kveik.errors import FleetError, VerifyError
from kveik.fleet.client import FleetClient
from kveik.verify.proof import Say, Subject

POLL_S = 0.1
#: Prompts of the clients that ask while an engine is killed; short, so that their answers are quick.
STEADY_PROMPTS = tuple(tuple(range(start, start + 24)) for start in (10, 40, 70, 100))
_CLIENTS = 4
_FIRST_ANSWERS = 8


@dataclass(frozen=True, slots=True)
class Outage:
    """What ``clients`` saw while an engine was killed. ``back_s``: from the kill until it got requests again."""

    engine: str
    back_s: float
    tally: Tally
    clients: int = _CLIENTS

    @property
    def fine(self) -> bool:
        """Whether nothing was lost but streams that the killed engine had begun: one a client at most."""
        return not self.tally.lost and not self.tally.wrong and len(self.tally.cuts) <= self.clients


class Service(Protocol):
    """Two engines that answer for one address."""

    first: Subject
    second: Subject

    def through(self, engine: Subject) -> EngineClient:
        """A client whose requests that engine answers."""

    def lose(self, engine: Subject) -> Outage:
        """Kill -9 an engine while clients go on asking, and wait until it gets requests again."""


class RoutedService:
    """Two engines behind a router. ``processes``: the ids of all processes of an engine, now.

    An engine is chosen by draining the other one, so every request takes the way of a client's.
    """

    def __init__(
        self,
        router_url: str,
        engines: tuple[Subject, Subject],
        processes: Callable[[str], Sequence[int]],
        say: Say,
        patience_s: float = 600.0,
    ) -> None:
        self.first, self.second = engines
        self._front = EngineClient(router_url)
        self._fleet = FleetClient(router_url, deadline_s=30.0)
        self._processes = processes
        self._say = say
        self._patience_s = patience_s

    def through(self, engine: Subject) -> EngineClient:
        """Raises :class:`VerifyError` when the router does not follow in time."""
        self._wait(lambda: {self.first.name, self.second.name} <= self._states().keys(), "both engines to be announced")
        for one in (self.first, self.second):
            self._set(one, "readmit" if one is engine else "drain")
        self._wait(lambda: self.ready() == {engine.name}, f"the router to send to {engine.name} alone")
        return self._front

    def lose(self, engine: Subject) -> Outage:
        """Raises :class:`VerifyError` when the engine does not come back."""
        for one in (self.first, self.second):
            self._set(one, "readmit")
        both = {self.first.name, self.second.name}
        self._wait(lambda: self.ready() == both, "both engines to get requests")
        with SteadyClients(self._front, engine.model, STEADY_PROMPTS, count=_CLIENTS) as clients:
            self._wait(lambda: len(clients.tally.asked) >= _FIRST_ANSWERS, "the first answers")
            killed = set(self._processes(engine.name))
            killed_s = time.monotonic()
            for pid in killed:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            self._say(f"{engine.name} is killed with -9 while {_CLIENTS} clients ask")
            self._wait(lambda: self.ready() != both, "the router to notice")
            self._wait(
                lambda: not killed & set(self._processes(engine.name)) and self.ready() == both,
                f"{engine.name} to get requests again",
            )
            back_s = time.monotonic() - killed_s
        outage = Outage(engine.name, back_s, clients.stop())
        self._say(
            f"{engine.name} gets requests again after {back_s:.0f} s; meanwhile {len(outage.tally.asked)} requests "
            f"were made, {len(outage.tally.lost)} failed, {len(outage.tally.cuts)} streams were cut off"
        )
        return outage

    def _set(self, engine: Subject, action: str) -> None:
        state = self._states().get(engine.name, {}).get("state")
        if (action == "drain") == (state == "draining"):
            return
        self._fleet.hold(engine.name, action, "measurement of one engine at a time")

    def _states(self) -> Mapping[str, Mapping[str, Any]]:
        return {engine["engine_id"]: engine for engine in self._fleet.engines()["data"]}

    def ready(self) -> set[str]:
        """The engines that get requests now."""
        try:
            with urllib.request.urlopen(f"{self._front.url}/ready", timeout=10) as answer:  # noqa: S310 (checked)
                return set(json.load(answer)["engines"])
        except urllib.error.HTTPError:  # 503: none
            return set()
        except OSError as error:
            raise VerifyError(f"the router at {self._front.url} does not answer: {error}") from error

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        until_s = time.monotonic() + self._patience_s
        while not condition():
            if time.monotonic() > until_s:
                try:
                    states = {name: engine.get("state") for name, engine in self._states().items()}
                except FleetError as error:
                    states = {"router": str(error)}
                raise VerifyError(f"waited {self._patience_s:g} s for {what}; the engines are {states}")
            time.sleep(POLL_S)
