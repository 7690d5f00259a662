"""The yuanrong tier as an agent uses it: the store in processes of its own, with counts."""

from dataclasses import asdict

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.records import Listener, ignore
from kveik.store.apart import ApartStore, Recipe, SharedMemory
from kveik.store.base import BlockStore
from kveik.store.stored_here import CountingStore
from kveik.store.yuanrong_client import YuanrongOptions

#: An interpreter and the library are there in a second; a machine that starts everything at once takes longer.
_START_S = 30.0
#: What a process may need beside the library's waits.
_SPARE_S = 2.0


def recipe_of(options: YuanrongOptions) -> Recipe:
    """What the processes run. A call for several keys may wait for the library three times (see ``_find``)."""
    return Recipe(
        "kveik.store.yuanrong:open_yuanrong",
        asdict(options),
        open_s=_START_S + options.connect_ms / 1000,
        patience_s=_SPARE_S + 2 * options.request_ms / 1000,
    )


def processes_for(readers: int) -> int:
    """How many processes so many reading threads and half as many writing ones need."""
    return readers + max(1, readers // 2)


def open_tier(
    options: YuanrongOptions,
    *,
    readers: int,
    memory: SharedMemory | None = None,
    listener: Listener = ignore,
    clock: Clock = SYSTEM_CLOCK,
) -> BlockStore:
    """The store. Raises :class:`~kveik.errors.StoreError` if no worker answers."""
    return CountingStore(
        ApartStore(
            "yuanrong",
            options.capabilities,
            recipe_of(options),
            processes=processes_for(readers),
            memory=memory,
            listener=listener,
            clock=clock,
        )
    )
