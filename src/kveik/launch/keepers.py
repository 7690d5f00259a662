"""Who keeps an engine's process, as a roll needs them: a node's supervisor, or a command of somebody else's."""

from typing import Protocol

from kveik.errors import RollError
from kveik.launch.roll_plan import Rolled
from kveik.supervise.client import ControlClient
from kveik.watchdog.restarters import CommandRestarter


class Keeper(Protocol):
    """All methods raise :class:`~kveik.errors.KveikError` where the order cannot be given."""

    def held(self, engine: Rolled) -> str:
        """Why others must keep their hands off it; empty if they need not."""

    def digest(self, engine: Rolled) -> str:
        """Says whether two descriptions of its process are the same; empty if it cannot be known."""

    def hold(self, engine: Rolled, why: str) -> None:
        """Have the watchdog keep its hands off."""

    def release(self, engine: Rolled) -> None:
        """Let the watchdog look after it."""

    def restart(self, engine: Rolled, why: str) -> None:
        """End it in order, and start it as it is described now."""

    def serves(self, engine: Rolled) -> bool:
        """Whether the new process is up, as far as the keeper knows. Raises :class:`RollError` if it has given up."""


class SupervisedKeeper:
    """By a node's supervisor; ``config`` is the file that engines are described by now."""

    def __init__(self, control: ControlClient, config: str) -> None:
        self._control = control
        self._config = config

    def __repr__(self) -> str:
        return f"SupervisedKeeper({self._control!r})"

    def held(self, engine: Rolled) -> str:
        """Why its process is held."""
        return self._control.view(engine.name).held

    def digest(self, engine: Rolled) -> str:
        """That of its own process."""
        return self._control.view(engine.name).digest

    def hold(self, engine: Rolled, why: str) -> None:
        """Hold all its parts."""
        for part in engine.parts:
            self._control.hold(part, why)

    def release(self, engine: Rolled) -> None:
        """Release all its parts."""
        for part in engine.parts:
            self._control.release(part)

    def restart(self, engine: Rolled, why: str) -> None:
        """Restart all its parts, each with its own grace, ranks before their head."""
        for part in reversed(engine.parts):
            self._control.restart(part, why, config=self._config)

    def serves(self, engine: Rolled) -> bool:
        """Whether its process is ready. Raises :class:`RollError` when its supervisor has given it up."""
        view = self._control.view(engine.name)
        if view.state in ("failed", "stopped"):
            log = f"; its log is {view.log}" if view.log else ""
            raise RollError(f"{view.name} is {view.state}: {view.why or 'no reason is known'}{log}")
        return view.state == "ready"


class CommandKeeper:
    """By the command that the configuration has for the engine; it returns when the old process has ended."""

    def __repr__(self) -> str:
        return "CommandKeeper()"

    def held(self, engine: Rolled) -> str:
        """Nobody says so."""
        return ""

    def digest(self, engine: Rolled) -> str:
        """Not known."""
        return ""

    def hold(self, engine: Rolled, why: str) -> None:
        """The watchdog sees at the router that a person isolated it."""

    def release(self, engine: Rolled) -> None:
        """Nothing was held."""

    def restart(self, engine: Rolled, why: str) -> None:
        """Run the command. Raises :class:`RestartError`."""
        CommandRestarter(engine.name, engine.command, deadline_s=engine.start_s).restart(why)

    def serves(self, engine: Rolled) -> bool:
        """Only the engine itself can tell."""
        return True
