"""The part of the settings table that says which distributed stores the agent uses, and how.

One dataclass a section, as in :mod:`kveik.config`. A store whose address is empty is not used. What can be done with
them is in :mod:`kveik.store`; none of their packages is needed unless its section names an address.
"""

from dataclasses import dataclass

from kveik.setting import WAIT_MAX_S, setting

MIB = 1 << 20


@dataclass(frozen=True, kw_only=True, slots=True)
class MooncakeSettings:
    """``[mooncake]``: Mooncake Store as a tier of the agent."""

    master: str = setting("", "HOST:PORT of the Mooncake master; empty: no such tier.")
    master_http: str = setting(
        "", "HOST:PORT of the master's metrics, for sizes, lists and this node's segments; empty: none of these."
    )
    metadata: str = setting(
        "P2PHANDSHAKE",
        "How clients find each other: P2PHANDSHAKE, or the URL of a metadata service, such as http://HOST:PORT/metadata.",
    )
    host: str = setting("", "This node's address as other nodes reach it; empty: the one that reaches the master.")
    protocol: str = setting(
        "tcp", "Transport: what this build of Mooncake has.", choices=("tcp", "rdma", "ascend", "ascend_direct", "hccl")
    )
    device: str = setting("", "Network devices of the transport, with commas, such as mlx5_0; empty: it chooses.")
    segment_bytes: int = setting(
        0,
        "Memory that this agent lends to the store; 0: none, other processes do (mooncake_client).",
        unit="bytes",
        minimum=0,
    )
    staging_bytes: int = setting(
        64 * MIB, "Memory for blocks that do not lie in the arena, such as probes.", unit="bytes", minimum=MIB
    )
    replicas: int = setting(1, "Copies of each block, on different segments.", unit="copies", minimum=1, maximum=16)
    soft_pin: bool = setting(False, "Ask that blocks are evicted after those without this mark.")
    prefer_local: bool = setting(
        True, "Put into this node's own segment while it has room, so that an empty node does not draw all puts."
    )
    prefix: str = setting(
        "kveik", "How the names of all blocks begin there: letters, digits, '_', '-'. Others do not see them."
    )
    threads: int = setting(4, "Threads that talk to this store.", minimum=1, maximum=256)


@dataclass(frozen=True, kw_only=True, slots=True)
class YuanrongSettings:
    """``[yuanrong]``: openYuanrong datasystem as a tier of the agent."""

    worker: str = setting("", "HOST:PORT of this node's datasystem worker; empty: no such tier.")
    connect_s: float = setting(
        3.0, "Longest wait for the worker to answer at first.", unit="s", minimum=0.5, maximum=60
    )
    request_s: float = setting(2.0, "Longest wait for one request.", unit="s", minimum=0.1, maximum=60)
    evictable: bool = setting(True, "Let the store drop blocks when its memory is full; false: puts fail then.")
    ttl_hours: float = setting(0.0, "How long a block is kept; 0: until it is evicted.", unit="h", minimum=0)
    processes: int = setting(
        2, "Processes that read from the worker, each one call at a time; half as many write.", unit="processes",
        minimum=1, maximum=64,
    )  # fmt: skip


@dataclass(frozen=True, kw_only=True, slots=True)
class RedisSettings:
    """``[redis]``: Redis or Valkey as a tier of the agent."""

    address: str = setting("", "HOST:PORT, or the path of a Unix socket; empty: no such tier.")
    database: int = setting(0, "Which of the server's databases.", unit="number", minimum=0)
    user: str = setting("", "User to log in as; empty: the default one.")
    password_file: str = setting("", "File whose first line is the password; empty: none.", unit="path")
    tls: bool = setting(False, "Talk TLS, with the system's certificates.")
    ttl_hours: float = setting(0.0, "How long a block is kept; 0: until the server evicts it.", unit="h", minimum=0)
    connect_s: float = setting(
        3.0, "Longest wait for a connection or an answer.", unit="s", minimum=0.1, maximum=WAIT_MAX_S
    )
    threads: int = setting(4, "Threads that talk to this store.", minimum=1, maximum=256)


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreSettings:
    """The sections of all distributed stores."""

    mooncake: MooncakeSettings = MooncakeSettings()
    yuanrong: YuanrongSettings = YuanrongSettings()
    redis: RedisSettings = RedisSettings()
