"""What a cache tier adds to a node: processes before the engines, their files, and what engines are told. Pure."""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from kveik.engine.kv_transfer import kv_transfer_argument
from kveik.profiles.catalog import Option, Variable
from kveik.profiles.node import HERE, INSIDE, Process, Ready
from kveik.profiles.wish import GIB, Wish

_ETCD_IMAGE = "quay.io/coreos/etcd:v3.5.12"
_START_S = 120
_RUN = "/run/kveik"
_SOCKET = f"{_RUN}/agent.sock"
_CONNECTOR = "how vLLM reaches the tier"
_KEEP_HYBRID: Option = (
    "--no-disable-hybrid-kv-cache-manager",
    "",
    "with a connector vLLM would otherwise keep all tokens of every cache: out of memory",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPart:
    """What a tier adds. ``connector``: its value for the engine of that number on a node; None: no connector."""

    processes: tuple[Process, ...] = ()
    files: Mapping[str, str] = field(default_factory=dict)
    connector: Callable[[int, int], str] | None = None
    variables: tuple[Variable, ...] = ()
    engine_files: tuple[str, ...] = ()
    engine_mounts: Mapping[str, bool] = field(default_factory=dict)
    docker: tuple[str, ...] = ()
    libraries: str = ""
    hybrid: bool = False

    def options(self, node: int, number: int) -> tuple[Option, ...]:
        """The options of ``vllm serve`` for an engine."""
        if self.connector is None:
            return ()
        told: tuple[Option, ...] = (("--kv-transfer-config", self.connector(node, number), _CONNECTOR),)
        return (_KEEP_HYBRID, *told) if self.hybrid else told


def tier_part(wish: Wish, node: int) -> TierPart:
    """The tier of this launch on one node."""
    return _MAKERS[wish.tier.name](wish, node)


def _none(_wish: Wish, _node: int) -> TierPart:
    return TierPart()


def _kveik(wish: Wish, _node: int) -> TierPart:
    arena: list[Option] = [
        ("--arena-bytes", str(wish.given.store_gib * GIB), "blocks in memory, shared by all engines")
    ]
    mounts = {"/dev/shm": False, _RUN: False} if wish.in_containers else {}  # noqa: S108 (the machine's own)
    if wish.in_containers:
        arena.insert(0, ("--socket", _SOCKET, "where engines find it"))
    if folder := wish.given.shared_folder:
        arena.append(
            ("--filesystem", folder, "blocks outlive the node, and are shared with others that use the folder")
        )
    # One more than `ipc`: the agent tells by process numbers whether a writer still lives.
    docker = ("--net=host", "--ipc=host", "--pid=host") if wish.in_containers else ()
    agent = Process(
        name="agent",
        title="Kveik's agent: owns the memory in which blocks are kept",
        image=wish.image,
        command=("kveik", "agent"),
        options=tuple(arena),
        mounts={**mounts, **({wish.given.shared_folder: False} if wish.given.shared_folder else {})},
        docker=docker,
        ready=Ready("unix", 0, _START_S, _SOCKET if wish.in_containers else ""),
    )
    settings = {"socket": _SOCKET} if wish.in_containers else {}
    return TierPart(
        processes=(agent,),
        connector=lambda _node, _number: kv_transfer_argument(settings),
        engine_mounts=mounts,
        docker=docker,
    )


def _memcache(wish: Wish, node: int) -> TierPart:
    head = wish.address(0)
    meta, config, metrics = (wish.tier.ports[name] for name in ("meta", "config", "metrics"))
    files = {
        "mmc-local.conf": "\n".join(
            [
                "# One address for all nodes: with the package's own, loopback, each node has a pool of its own.",
                f"ock.mmc.meta_service_url = tcp://{head}:{meta}",
                f"ock.mmc.local_service.config_store_url = tcp://{head}:{config}",
                "ock.mmc.log_level = info",
                "ock.mmc.local_service.world_size = 256",
                f"ock.mmc.local_service.protocol = {wish.hardware.pool_protocol}",
                f"# Of each device: {wish.given.store_gib} GiB of the node over {wish.hardware.devices} devices.",
                f"ock.mmc.local_service.dram.size = {max(1, wish.given.store_gib // wish.hardware.devices)}GB",
                "",
            ]
        )
    }
    processes: tuple[Process, ...] = ()
    if node == 0:
        files["mmc-meta.conf"] = "\n".join(
            [
                f"ock.mmc.meta_service_url = tcp://{head}:{meta}",
                f"ock.mmc.meta_service.config_store_url = tcp://{head}:{config}",
                f"ock.mmc.meta_service.metrics_url = http://{head}:{metrics}",
                "ock.mmc.log_level = info",
                "ock.mmc.evict_threshold_high = 90",
                "ock.mmc.evict_threshold_low = 80",
                "",
            ]
        )
        service = "from memcache_hybrid import MetaService; MetaService.main()"
        processes = (
            Process(
                name="memcache-meta",
                title="MemCache's directory of blocks, one for all nodes",
                image=wish.image,
                command=("python3", "-c", service),
                variables=(Variable("MMC_META_CONFIG_PATH", f"{INSIDE}/mmc-meta.conf"),),
                files=("mmc-meta.conf",),
                docker=("--net=host",),
                before=wish.hardware.setup,
                ready=Ready(head, meta, _START_S),
            ),
        )
    return TierPart(
        processes=processes,
        files=files,
        connector=_ascend_store(wish),
        variables=(*wish.hardware.pool_variables, Variable("MMC_LOCAL_CONFIG_PATH", f"{INSIDE}/mmc-local.conf")),
        engine_files=("mmc-local.conf",),
        hybrid=wish.model.hybrid,
    )


def _mooncake(wish: Wish, node: int) -> TierPart:
    head = wish.address(0)
    port = wish.tier.ports["master"]
    ascend = wish.hardware.platform == "ascend"
    segment_gib = max(1, wish.given.store_gib // wish.hardware.devices)
    described = {
        "metadata_server": "P2PHANDSHAKE",
        # AscendStore takes no other protocol on NPUs; on CUDA TCP needs no RDMA network.
        "protocol": "ascend" if ascend else "tcp",
        "device_name": "",
        "master_server_address": f"{head}:{port}",
        "global_segment_size": f"{segment_gib}GB",
    }
    processes: tuple[Process, ...] = ()
    if node == 0:
        options: tuple[Option, ...] = (
            ("--port", str(port), ""),
            ("--eviction_high_watermark_ratio", "0.9", "room for the next batch is made in time"),
            ("--eviction_ratio", "0.1", ""),
            ("--default_kv_lease_ttl", "11000", "ms; longer than connecting and transferring may take (3000 ms each)"),
            ("--client_ttl", "120", "s; busy engines answer late, and lose their blocks if they are taken for dead"),
        )
        processes = (
            Process(
                name="mooncake-master",
                title="Mooncake's master, one for all nodes",
                image=wish.image,
                command=("mooncake_master", *(f"{name}={value}" for name, value, _ in options)),
                docker=("--net=host",),
                before=wish.hardware.setup,
                ready=Ready(head, port, _START_S),
            ),
        )
    own = (Variable("MOONCAKE_CONFIG_PATH", f"{INSIDE}/mooncake.json"),)
    return TierPart(
        processes=processes,
        files={"mooncake.json": json.dumps(described, indent=1) + "\n"},
        connector=_ascend_store(wish) if ascend else lambda _node, _number: _json("MooncakeStoreConnector", {}),
        variables=(*wish.hardware.pool_variables, *own) if ascend else own,
        engine_files=("mooncake.json",),
        libraries="/usr/local/Ascend/ascend-toolkit/latest/python/site-packages/mooncake" if ascend else "",
        hybrid=wish.model.hybrid,
    )


def _yuanrong(wish: Wish, node: int) -> TierPart:
    ports, head, here = wish.tier.ports, wish.address(0), wish.address(node)
    described = {
        "worker_addr": f"{here}:{ports['worker']}",
        "connect_timeout_ms": 9000,
        "request_timeout_ms": 0,
        "get_sub_timeout_ms": 0,
        "enable_remote_h2d": False,
        "use_layerwise": False,
    }
    worker = Process(
        name="yuanrong-worker",
        title="the datasystem worker of this node: blocks lie in its memory",
        image=wish.image,
        # dscli leaves the worker in the background; the container lives as long as the worker listens.
        command=("bash", "-c", _WORKER, "bash", here, str(ports["worker"])),
        options=(
            ("--etcd_address", f"{head}:{ports['etcd']}", "one etcd for all workers"),
            (
                "--shared_memory_size_mb",
                str(wish.given.store_gib * 1024),
                "counts against the container's memory limit",
            ),
            ("--node_timeout_s", "30", "a worker that is silent for so long is left out"),
            ("--node_dead_timeout_s", "60", "and given up after so long; both are seconds, and this is the longer one"),
            ("--log_dir", "/var/log/yuanrong/worker", ""),
        ),
        docker=("--net=host", "--ipc=host"),
        before=wish.hardware.setup,
        ready=Ready(here, ports["worker"], _START_S),
    )
    return TierPart(
        processes=(_etcd(wish), worker) if node == 0 else (worker,),
        files={"yuanrong.json": json.dumps(described, indent=1) + "\n"},
        connector=_ascend_store(wish),
        variables=(
            Variable(
                "YR_CONFIG_PATH", f"{INSIDE}/yuanrong.json", "DS_WORKER_ADDR is not read since vllm-ascend 0.27.1rc1"
            ),
            Variable("DATASYSTEM_CLIENT_LOG_DIR", "/var/log/yuanrong/client"),
        ),
        engine_files=("yuanrong.json",),
        docker=("--ipc=host",),
        hybrid=wish.model.hybrid,
    )


_WORKER = (
    'host="$1" port="$2"; shift 2; mkdir -p /var/log/yuanrong/worker; '
    'dscli start -w --worker_address "$host:$port" "$@" || exit 1; '
    'while (exec 3<>"/dev/tcp/$host/$port") 2>/dev/null; do sleep 5; done; exit 1'
)


def _etcd(wish: Wish) -> Process:
    head, client, peer = wish.address(0), wish.tier.ports["etcd"], wish.tier.ports["etcd_peer"]
    return Process(
        name="etcd",
        title="etcd, one for all nodes (three or five for a service that must outlive a node)",
        image=_ETCD_IMAGE,
        command=("etcd",),
        options=(
            ("--name", "kveik-launch", ""),
            ("--data-dir", "/var/lib/etcd", "kept over restarts"),
            ("--listen-client-urls", f"http://{head}:{client}", "no wider than needed: it has no password"),
            ("--advertise-client-urls", f"http://{head}:{client}", ""),
            ("--listen-peer-urls", f"http://{head}:{peer}", ""),
            ("--initial-advertise-peer-urls", f"http://{head}:{peer}", ""),
            ("--initial-cluster", f"kveik-launch=http://{head}:{peer}", ""),
        ),
        mounts={"/var/lib/etcd": False},
        docker=("--net=host",),
        ready=Ready(head, client, _START_S, "/health"),
    )


def _ucm(wish: Wish, _node: int) -> TierPart:
    folder = wish.given.shared_folder
    lines = [
        "# The folder has to be the same on all nodes: write a file on one and read it on another first.",
        "use_layerwise: false",
        "ucm_connectors:",
        "  - ucm_connector_name: UcmPipelineStore",
        "    ucm_connector_config:",
        '      store_pipeline: "Cache|Posix"',
        f"      storage_backends: {json.dumps(folder)}",
        f"      cache_buffer_capacity_gb: {wish.given.store_gib}",
        "      timeout_ms: 30000",
        "",
    ]
    return TierPart(
        files={"ucm.yaml": "\n".join(lines)},
        connector=lambda _node, _number: _json("UCMConnector", {"UCM_CONFIG_FILE": f"{INSIDE}/ucm.yaml"}),
        engine_files=("ucm.yaml",),
        engine_mounts={folder: False},
        docker=("--ipc=host",),
        hybrid=wish.model.hybrid,
    )


def _ascend_store(wish: Wish) -> Callable[[int, int], str]:
    """AscendStore's value; the lookup port is unique among the engines of a machine and those of a group."""

    def value(node: int, number: int) -> str:
        own = node if wish.model.group else number
        extra = {"backend": wish.tier.backend, "lookup_rpc_port": str(own)}
        # Refused for models with several kinds of caches; for others a lost block must not fail the request.
        more = {} if wish.model.hybrid else {"kv_load_failure_policy": "recompute"}
        return _json("AscendStoreConnector", extra, **more)

    return value


def _json(connector: str, extra: Mapping[str, Any], **more: str) -> str:
    config: dict[str, Any] = {"kv_connector": connector, "kv_role": "kv_both", **more}
    if extra:
        config["kv_connector_extra_config"] = dict(extra)
    return json.dumps(config, separators=(",", ":"))


_MAKERS: Mapping[str, Callable[[Wish, int], TierPart]] = {
    "none": _none,
    "kveik": _kveik,
    "memcache": _memcache,
    "mooncake": _mooncake,
    "yuanrong": _yuanrong,
    "ucm": _ucm,
}


def written_at(name: str) -> str:
    """A volume that gives a process one of the written files."""
    return f"{HERE}/{name}:{INSIDE}/{name}:ro"
