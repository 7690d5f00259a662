"""One node of a testbed: an agent with an arena and a socket of its own, which is killed and started again."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kveik.agent.client import AgentClient
from kveik.clock import Deadline
from kveik.engine.launch import start_agent
from kveik.engine.process import ServerProcess
from kveik.errors import AgentError, VerifyError
from kveik.store.base import READY

#: What is in the way, in an agent's state.
Problems = Callable[[dict[str, Any]], list[str]]

_ANSWER_S = 10.0
_LOOK_S = 0.1


class BedNode:
    """The node's agent. ``settings`` are of the ``[agent]`` table; ``config`` names its stores, if any.

    ``patience_s`` bounds the waits for its tiers.
    """

    def __init__(
        self,
        name: str,
        python: str,
        settings: Mapping[str, Any],
        folder: Path,
        *,
        config: Path | None = None,
        patience_s: float = 120.0,
    ) -> None:
        self.name = name
        self._python = python
        self._settings = dict(settings)
        self._folder = folder
        self._config = config
        self._patience_s = patience_s
        self.agent: ServerProcess = self._start()

    def __repr__(self) -> str:
        return f"BedNode({self.name!r}, {self.agent!r})"

    @property
    def socket(self) -> str:
        """Where its engine finds it."""
        return str(self._settings["socket"])

    def _start(self) -> ServerProcess:
        return start_agent(self._python, self._settings, os.environ, self._folder, name=self.name, config=self._config)

    def wait_tiers(self) -> None:
        """Until all tiers are open. Raises :class:`VerifyError` that says which one is not, and why."""
        self._wait(
            lambda state: [f"{tier['name']} is {tier['state']}" for tier in state["tiers"] if tier["state"] != READY]
        )

    def wait_written(self) -> None:
        """Until everything that was saved lies in the tiers: what waits for that is pinned in the arena."""
        self._wait(lambda state: [f"{state['arena']['pinned']} blocks wait"] if state["arena"]["pinned"] else [])

    def _wait(self, problems: Problems) -> None:
        until_s = time.monotonic() + self._patience_s
        while found := self._found(problems):
            if time.monotonic() > until_s:
                raise VerifyError(
                    f"{self.name}: after {self._patience_s:g} s {', '.join(found)}; its log: {self.agent.log}"
                )
            time.sleep(_LOOK_S)

    def _found(self, problems: Problems) -> list[str]:
        """What is in the way. Right after a kill that may be the end of the agent that was killed."""
        try:
            client = AgentClient.connect(self.socket, role="verify", prefault=False)
            try:
                return problems(client.stats(Deadline.after(_ANSWER_S)))
            finally:
                client.close()
        except AgentError as error:
            return [f"it does not say how it is: {error}"]

    def kill_and_restart(self) -> None:
        """kill -9, and the same agent again with an empty arena: what it serves then is what its tiers kept."""
        self.agent.kill()
        Path(self._settings["arena"]).unlink(missing_ok=True)
        self.agent = self._start()
        self.wait_tiers()

    def stop(self) -> None:
        """End the agent."""
        self.agent.stop()
