"""Roll calls for tests: nodes whose rounds are made by hand, and calls beside running agents."""

import contextlib
from collections.abc import Sequence

from kveik.agent.node import NodeAgent
from kveik.clock import FakeClock
from kveik.store.base import BlockStore
from kveik.store.roll_call import Roster
from kveik.store.roll_call_round import Caller, Calls, RollCallRound
from kveik.store.roll_call_verdict import Presence, Sight
from kveik.store.roll_calling import RollCalls
from tests.agents import wait_until

PATIENCE_S = 60.0
NODES = ("n0", "n1")
RENEW_S = 45.0


class CallingNode:
    """One node's side of the call, round by round."""

    def __init__(
        self,
        name: str,
        store: BlockStore,
        clock: FakeClock,
        *,
        number: int = 0,
        nonce: str = "",
        deadline_s: float = 5.0,
    ) -> None:
        nonce = nonce or f"life-of-{name}"
        self.caller = Caller(Roster("f", name, NODES), f"host-of-{name}", nonce, RENEW_S, deadline_s)
        self.store = store
        self.clock = clock
        now_s = clock.monotonic()
        self.calls = Calls(number, {node: Sight(node, now_s, RENEW_S) for node in NODES})

    def round(self) -> None:
        done = RollCallRound(self.store, self.caller, self.calls, self.clock)
        done.run()
        self.calls = done.calls

    def clear(self) -> None:
        done = RollCallRound(self.store, self.caller, self.calls, self.clock)
        done.clear()
        self.calls = done.calls

    def sees(self, node: str) -> Presence:
        return self.calls.sights[node].presence(self.clock.monotonic())


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
