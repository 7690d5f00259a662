"""Opening Mooncake Store as a tier of the agent: what is wrong in the settings at once, what is down later."""

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config_stores import MooncakeSettings
from kveik.records import Listener, ignore
from kveik.store.apart import SharedMemory
from kveik.store.base import BlockStore
from kveik.store.mooncake import CAPABILITIES, MooncakeStore
from kveik.store.mooncake_link import MooncakeLink, check_settings
from kveik.store.opening import OpeningStore

#: Longest wait for a store to be joined before its tier counts as out; it is then tried again.
JOIN_S = 20.0
#: A call may take so much longer than the tier's deadline before its process is ended.
GRACE_S = 1.0


def open_tier(
    settings: MooncakeSettings,
    memory: SharedMemory | None,
    *,
    deadline_s: float,
    listener: Listener = ignore,
    clock: Clock = SYSTEM_CLOCK,
) -> BlockStore:
    """The tier. A master that is down stops no start: the tier is there when the master is.

    Raises :class:`~kveik.errors.ConfigError` for settings that cannot be meant, or a missing package.
    """
    check_settings(settings)

    def join() -> BlockStore:
        hang_s = deadline_s + GRACE_S
        link = MooncakeLink(settings, memory, wait_s=JOIN_S, hang_s=hang_s, listener=listener, clock=clock)
        return MooncakeStore(link, settings.prefix)

    return OpeningStore(
        "mooncake", CAPABILITIES, join, wait_s=deadline_s, must_open=False, listener=listener, clock=clock
    )
