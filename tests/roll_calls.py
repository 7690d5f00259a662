"""Roll calls beside running agents, for tests of each kind of store."""

import contextlib
from collections.abc import Sequence

from kveik.agent.node import NodeAgent
from kveik.store.roll_call import Roster
from kveik.store.roll_calling import RollCalls
from tests.agents import wait_until

PATIENCE_S = 60.0


def wait_until_each_sees_all(agents: Sequence[NodeAgent], tier: str, period_s: float = 0.3) -> None:
    """Each agent's tier is called, until every agent has read the blocks of all; at last they take theirs away."""
    names = [f"n{number}" for number in range(len(agents))]
    with contextlib.ExitStack() as undo:
        calls = []
        for name, agent in zip(names, agents, strict=True):
            roster = Roster("roll-calls", name, tuple(names))
            calls.append(RollCalls(agent.lower.guards, roster, period_s=period_s, deadline_s=20.0).start())
            undo.callback(calls[-1].close)

        def seen() -> list[str]:
            plain = [call.plain(tier) for call in calls]
            return [entry["presence"] for one in plain if one is not None for entry in one["nodes"]]

        wait_until(lambda: seen() == ["here"] * len(names) ** 2, f"each sees all in {tier}", PATIENCE_S)
