"""How a simulated engine's answers and counters deviate from a good one's, and a connector of its own."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from kveik.engine.metrics import CONNECTOR_PREFIX


@dataclass
class Behaviour:
    """What the engine says, true or not. Plain attributes: tests change them while it runs.

    Those from ``wrong_after_shared_hit`` to ``foreign_tokens`` concern an engine with a connector.
    """

    development_mode: bool = True
    has_connector: bool = True
    reports_cached_tokens: bool = True
    dtype: str = "float32"
    namespace: str = ""  # that the connector tells; it shapes no block keys
    wrong_after_shared_hit: bool = False  # another answer, while all counters look right
    rounding_after_hit: float = 0.0  # added to log probabilities after any hit, as bfloat16 does
    whole_prompt_hits: bool = False  # the shared cache serves a prompt to its end where that ends a block
    ignores_shared_cache: bool = False  # as if each lookup passed its deadline
    mismatched_blocks: int = 0  # of each load, reported by the connector
    failed_blocks: int = 0  # of each load
    compares_blocks: bool = True
    drops_saves: bool = False
    refuses_loads: bool = False  # as if computing were faster than each load
    forgets_shared_blocks: bool = False  # the shared cache evicts all at once
    detached: bool = False  # the connector has no agent
    foreign_tokens: int = 0  # prompt tokens counted for somebody else's request
    busy: int = 0  # requests of somebody else that run all the time
    breaks_stream_after: int = -1  # tokens; negative: never
    refuses_resets: int = 0  # how often /reset_prefix_cache says no before it says yes


class SimulatedConnector:
    """Stands in for Kveik's connector: a shared cache of block keys, and the connector's counters.

    Pass the same ``shared`` set to several engines and they share a cache.
    """

    def __init__(self, shared: set[bytes], block_tokens: int, behaviour: Behaviour) -> None:
        self.shared = shared
        self._block_tokens = block_tokens
        self._behaviour = behaviour
        self.counters: Counter[str] = Counter()

    def admit(self, keys: Sequence[bytes], prompt_tokens: int, local_blocks: int) -> int:
        """Tokens that the shared cache adds to a hit of ``local_blocks``; what is not there is saved."""
        behaviour = self._behaviour
        if behaviour.detached:
            self.counters['lookups_total{outcome="detached"}'] += 1
            return 0
        loadable = keys[: (prompt_tokens - 1) // self._block_tokens]
        if behaviour.whole_prompt_hits and local_blocks < len(loadable):
            loadable = keys
        asked, found = max(0, len(loadable) - local_blocks), 0
        if not behaviour.ignores_shared_cache and not behaviour.forgets_shared_blocks:
            missing = (n for n, key in enumerate(loadable[local_blocks:]) if key not in self.shared)
            found = next(missing, asked)
        if not behaviour.drops_saves:
            self.shared.update(keys)
        loaded = 0 if behaviour.refuses_loads else found
        self._count_lookup(asked, found, loaded)
        self._count(loaded, len(keys) - local_blocks)
        return loaded * self._block_tokens

    def lines(self) -> dict[str, int]:
        """The connector's samples, by whole name."""
        names = {CONNECTOR_PREFIX + name: value for name, value in self.counters.items()}
        if self._behaviour.namespace:
            names[f'{CONNECTOR_PREFIX}namespace{{digest="{self._behaviour.namespace}"}}'] = 1
        attached = 0 if self._behaviour.detached else 1
        return {**names, f"{CONNECTOR_PREFIX}attached": attached, f"{CONNECTOR_PREFIX}pinned_blocks": 0}

    def _count_lookup(self, asked: int, found: int, allowed: int) -> None:
        if not asked:
            return
        late = self._behaviour.ignores_shared_cache
        outcome = "deadline" if late else "hit" if found else "miss"
        tokens = {"asked": asked, "found": found, "allowed": allowed}
        self.counters.update({f"tokens_{step}_total": blocks * self._block_tokens for step, blocks in tokens.items()})
        self.counters[f'lookups_total{{outcome="{outcome}"}}'] += 1

    def _count(self, loaded: int, new_blocks: int) -> None:
        behaviour = self._behaviour
        dropped = new_blocks if behaviour.drops_saves else 0
        self.counters.update(
            {
                "tokens_used_total": loaded * self._block_tokens,
                'loaded_blocks_total{tier="arena"}': loaded,
                'load_failures_total{reason="timeout"}': behaviour.failed_blocks if loaded else 0,
                "read_back_blocks_total": loaded if behaviour.compares_blocks else 0,
                "read_back_mismatches_total": behaviour.mismatched_blocks if loaded else 0,
                "saved_blocks_total": new_blocks - dropped,
                'save_dropped_blocks_total{reason="no_room"}': dropped,
            }
        )
