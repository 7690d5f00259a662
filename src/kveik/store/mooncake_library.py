"""How Mooncake's client library is set up: its environment, its arguments, and whether it is here."""

import importlib.util
import socket
from collections.abc import Mapping

from kveik.config_stores import MooncakeSettings
from kveik.errors import ConfigError, StoreError
from kveik.store.mooncake_client import HostPlan

#: Packages of the same API, for whoever has none yet.
PACKAGES = (
    "mooncake-transfer-engine-non-cuda (no accelerator), mooncake-transfer-engine (CUDA) or "
    "mooncake-transfer-engine-npu (Ascend); on Debian also libibverbs1"
)
#: Memory that the library allocates for itself; our transfers need none of it.
LOCAL_BUFFER_BYTES = 16 << 20
#: What keeps the library's waits near to ours: by itself it waits half a minute for a master and a minute for an owner.
_ENVIRONMENT = {
    "MC_RPC_TIMEOUT_MS": "1000",
    "MC_RPC_CONNECT_TIMEOUT_MS": "1000",
    "MC_TCP_STATUS_TIMEOUT_SEC": "3",
    "MC_TCP_PROGRESS_TIMEOUT_SEC": "3",
    "MC_LOG_LEVEL": "ERROR",
}


def address_of_master(master: str) -> tuple[str, int]:
    """Host and port of ``mooncake.master``. Raises :class:`ConfigError` for anything but HOST:PORT."""
    host, _, port = master.rpartition(":")
    if not host or not port.isdigit() or not 0 < int(port) < 1 << 16:
        raise ConfigError(f"mooncake.master is {master!r}, expected HOST:PORT, such as 10.0.0.1:50051")
    return host.strip("[]"), int(port)


def host_facing(master: str) -> str:
    """This machine's address on the way to the master. Raises :class:`StoreError` where there is no way."""
    host, port = address_of_master(master)
    try:
        (family, kind, protocol, _, address), *_ = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(address)  # sends nothing
            own: str = probe.getsockname()[0]
            return own
    except OSError as error:
        raise StoreError(f"the Mooncake master {master} cannot be reached: {error.strerror or error}") from error


def demand_library() -> None:
    """Raises :class:`ConfigError` that says what to install, if there is no Mooncake here."""
    if importlib.util.find_spec("mooncake") is None:
        raise ConfigError(f"mooncake.master is set, but Mooncake is not installed here; install {PACKAGES}")


def environment(host: str, given: Mapping[str, str]) -> dict[str, str]:
    """The variables to add to ``given`` for the library; what is set there already is left alone."""
    wanted = {**_ENVIRONMENT, "MC_TCP_BIND_ADDRESS": host}
    return {name: value for name, value in wanted.items() if name not in given}


def plan_of(
    settings: MooncakeSettings, host: str, given: Mapping[str, str], *, lent_bytes: int = 0, threads: int = 0
) -> HostPlan:
    """For a process that lends ``lent_bytes`` to the store, and makes transfers on ``threads`` threads."""
    return HostPlan(
        setup=(
            host,
            settings.metadata,
            lent_bytes,
            LOCAL_BUFFER_BYTES,
            settings.protocol,
            settings.device,
            settings.master,
        ),
        threads=threads,
        replicas=settings.replicas,
        soft_pin=settings.soft_pin,
        # Its log has several lines for each key that fails; the tier counts and tells those failures.
        talkative="MC_LOG_LEVEL" in given,
        environment=environment(host, given),
    )
