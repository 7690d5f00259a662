"""What a roll is asked, what it tells, and what became of it: the values between a roll and who orders it."""

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from kveik.engine.client import EngineClient
from kveik.launch.roll_plan import RollState, Stage

#: An engine that does not answer a small request within this is not ready.
ANSWER_S = 60.0


@dataclass(frozen=True, slots=True)
class Told:
    """One line of progress. ``state``: began, note, done or failed; ``seconds``: since the step began."""

    engine: str
    stage: Stage
    state: str
    told: str = ""
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Proof:
    """What became of a verification: whether it holds, and one sentence about it."""

    holds: bool
    told: str


@dataclass(frozen=True, slots=True)
class Question:
    """What is to be proved: the engine of a new version at ``new`` against one of the fleet at ``other``, by address.

    ``other`` is empty if there is none. ``restart`` restarts the new one once more, and returns when it answers.
    ``say`` is told how far it is.
    """

    new: str
    other: str
    restart: Callable[[], None]
    say: Callable[[str], None]


#: Raises :class:`KveikError` if the proof could not be carried out.
Prove = Callable[[Question], Proof]


class Notebook(Protocol):
    """Remembers how far a roll came; see :class:`kveik.launch.roll_state.RollNotebook`."""

    def write(self, state: RollState) -> None:
        """Replace what was remembered."""

    def forget(self) -> None:
        """The roll is finished."""


@dataclass(frozen=True, slots=True)
class RollOptions:
    """``ready_min``: engines that get requests at any time; ``drain_s``: how long requests under way may go on.

    ``ready_s``: how long a readmitted engine may take until all routers send it requests, and how long a lack of
    ready engines may last. ``config``: digest of the configuration. ``api_key``: what engines ask for.
    """

    ready_min: int = 1
    drain_s: float = 120.0
    ready_s: float = 120.0
    config: str = ""
    asked: tuple[str, ...] = ()
    api_key: str = field(default="", repr=False)

    def client(self, url: str) -> EngineClient:
        """An engine, asked for small things."""
        return EngineClient(url, read_timeout_s=ANSWER_S, api_key=self.api_key)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a roll. ``failed``: the engine whose step failed; ``advice``: what things are like then."""

    rolled: tuple[str, ...]
    left: tuple[str, ...] = ()
    failed: str = ""
    stage: Stage | None = None
    advice: tuple[str, ...] = ()
    interrupted: bool = False
    seconds: float = 0.0


class Interruption:
    """Somebody wants the roll to end: asked for by a signal, looked at between steps."""

    def __init__(self) -> None:
        self._event = threading.Event()

    @property
    def asked(self) -> bool:
        """Whether it shall end."""
        return self._event.is_set()

    def ask(self) -> None:
        """End it as soon as that leaves nothing in between."""
        self._event.set()

    def pause(self, seconds: float) -> bool:
        """Wait, but not beyond an interruption; whether there is one."""
        return self._event.wait(seconds)
