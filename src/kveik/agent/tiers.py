"""Which tiers lie below the arena, in which order, and how each is opened."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kveik.clock import SYSTEM_CLOCK, Clock
from kveik.config import AgentSettings, StoreSettings
from kveik.errors import ConfigError
from kveik.records import Listener, ignore
from kveik.store.apart import SharedMemory
from kveik.store.base import BlockStore
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_medium import medium_in, mount_table
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.mooncake_tier import open_tier as open_mooncake_tier
from kveik.store.opening import OpeningStore
from kveik.store.redis import CAPABILITIES, RedisStore
from kveik.store.redis_link import connect
from kveik.store.yuanrong_client import YuanrongOptions, require_package
from kveik.store.yuanrong_tier import open_tier as open_yuanrong_tier

_LOCAL_THREADS, _NETWORK_THREADS = 4, 16


@dataclass(frozen=True, slots=True)
class TierContext:
    """What an opener may use. ``memory`` is the whole arena: buffers given to a tier later lie within it, but probes.

    ``open_memory`` gives a new descriptor of its file, for a process that maps it too; the caller closes it.
    """

    agent: AgentSettings
    stores: StoreSettings
    memory: memoryview
    listener: Listener = ignore
    clock: Clock = SYSTEM_CLOCK
    open_memory: Callable[[], int] | None = None

    @property
    def shared_memory(self) -> SharedMemory | None:
        """The arena for a process that maps it too; None if its file cannot be handed over."""
        return SharedMemory(self.memory, self.open_memory) if self.open_memory else None


@dataclass(frozen=True, slots=True)
class TierKind:
    """One kind of tier: whether the settings ask for it, how many threads talk to it, how it is opened."""

    wanted: Callable[[AgentSettings, StoreSettings], bool]
    threads: Callable[[AgentSettings, StoreSettings], int]
    open: Callable[[TierContext], BlockStore]


def filesystem_threads(agent: AgentSettings) -> int:
    """How many threads read the folder: as set, else enough to hide the round trips of what it lies on."""
    if agent.filesystem_threads:
        return agent.filesystem_threads
    # The path as it is written: resolving links would touch a mount that may hang.
    network = medium_in(os.path.abspath(agent.filesystem), mount_table()).network
    return _NETWORK_THREADS if network else _LOCAL_THREADS


def open_filesystem(context: TierContext) -> BlockStore:
    """The folder tier. Raises :class:`~kveik.errors.StoreError` for a folder that is plainly wrong."""
    options = FilesystemOptions.from_settings(context.agent)
    return OpeningStore(
        "filesystem",
        options.capabilities,
        lambda: FilesystemStore(options, name="filesystem", listener=context.listener, clock=context.clock),
        wait_s=context.agent.tier_deadline_s,
        listener=context.listener,
        clock=context.clock,
    )


def open_mooncake(context: TierContext) -> BlockStore:
    """Mooncake Store. Raises :class:`ConfigError` for wrong settings or a missing package."""
    return open_mooncake_tier(
        context.stores.mooncake,
        context.shared_memory,
        deadline_s=context.agent.tier_deadline_s,
        listener=context.listener,
        clock=context.clock,
    )


def open_yuanrong(context: TierContext) -> BlockStore:
    """openYuanrong datasystem. Raises :class:`ConfigError` for a wrong address or a missing package."""
    settings = context.stores.yuanrong
    options = YuanrongOptions.from_settings(settings)
    require_package()
    return OpeningStore(
        "yuanrong",
        options.capabilities,
        lambda: open_yuanrong_tier(
            options,
            readers=settings.processes,
            memory=context.shared_memory,
            listener=context.listener,
            clock=context.clock,
        ),
        wait_s=context.agent.tier_deadline_s,
        must_open=False,
        listener=context.listener,
        clock=context.clock,
    )


def open_redis(context: TierContext) -> BlockStore:
    """Redis or Valkey. Raises :class:`ConfigError` for a wrong address or a missing package."""
    link = connect(context.stores.redis)
    return OpeningStore(
        "redis",
        CAPABILITIES,
        lambda: RedisStore.open(context.stores.redis, link),
        wait_s=context.agent.tier_deadline_s,
        must_open=False,
        listener=context.listener,
        clock=context.clock,
    )


#: All kinds, nearest first.
KINDS: Mapping[str, TierKind] = {
    "mooncake": TierKind(
        wanted=lambda _, stores: bool(stores.mooncake.master),
        threads=lambda _, stores: stores.mooncake.threads,
        open=open_mooncake,
    ),
    "yuanrong": TierKind(
        wanted=lambda _, stores: bool(stores.yuanrong.worker),
        threads=lambda _, stores: stores.yuanrong.processes,
        open=open_yuanrong,
    ),
    "redis": TierKind(
        wanted=lambda _, stores: bool(stores.redis.address),
        threads=lambda _, stores: stores.redis.threads,
        open=open_redis,
    ),
    "filesystem": TierKind(
        wanted=lambda agent, _: bool(agent.filesystem),
        threads=lambda agent, _: filesystem_threads(agent),
        open=open_filesystem,
    ),
}


def tier_names(agent: AgentSettings, stores: StoreSettings, kinds: Mapping[str, TierKind] = KINDS) -> list[str]:
    """The tiers to use, nearest first.

    Raises :class:`ConfigError` if ``agent.tiers`` names one that is unknown, named twice or not
    configured, or leaves out one that is.
    """
    wanted = [name for name, kind in kinds.items() if kind.wanted(agent, stores)]
    named = [name.strip() for name in agent.tiers.split(",") if name.strip()]
    if not named:
        return wanted
    said = f"agent.tiers is {agent.tiers!r}"
    for name in named:
        if name not in kinds:
            raise ConfigError(f"{said}: there is no tier {name!r}, expected some of {', '.join(kinds)}")
        if named.count(name) > 1:
            raise ConfigError(f"{said}: {name!r} stands there twice")
        if name not in wanted:
            raise ConfigError(f"{said}: {name!r} is not configured: set its address or folder, or leave it out")
    if left_out := [name for name in wanted if name not in named]:
        raise ConfigError(f"{said}: {left_out[0]!r} is configured but not named: add it, or remove its settings")
    return named
