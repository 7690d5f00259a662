"""What the node's engines told of themselves, and what the cache saved all of them since the agent's start. Pure."""

from collections.abc import Hashable

import msgspec

from kveik.agent.protocol import EngineRates, TierGain

NOTHING = TierGain()


class EngineBooks:
    """The latest word of each engine, by its connection, and sums by tier, which stay when engines go. Not locked."""

    def __init__(self) -> None:
        self._latest: dict[Hashable, EngineRates] = {}
        self._gains: dict[str, TierGain] = {}

    def __repr__(self) -> str:
        return f"EngineBooks({len(self._latest)} engines, {self._gains})"

    def told(self, connection: Hashable, rates: EngineRates) -> None:
        """An engine says what it learned, and what it gained since it said so last."""
        self._latest[connection] = rates
        for tier, gain in rates.gains.items():
            before = self._gains.get(tier, NOTHING)
            self._gains[tier] = TierGain(
                before.tokens + gain.tokens, before.saved_s + gain.saved_s, before.lost_s + gain.lost_s
            )

    def ended(self, connection: Hashable) -> None:
        """Its connection is gone."""
        self._latest.pop(connection, None)

    def latest(self, connection: Hashable) -> dict[str, object] | None:
        """What one engine said of its computing, as plain values; None if it said nothing yet."""
        rates = self._latest.get(connection)
        if rates is None or not rates.prefill:
            return None
        known: dict[str, object] = msgspec.to_builtins(rates)
        return {name: value for name, value in known.items() if name != "gains"}

    def gains(self) -> dict[str, dict[str, float]]:
        """For each tier: tokens loaded from it, engine-seconds saved and lost."""
        return {tier: msgspec.to_builtins(gain) for tier, gain in sorted(self._gains.copy().items())}
