"""etcd and one datasystem worker on one machine: commands, settings, and how it is done on several nodes.

Flags and defaults are those of openyuanrong-datasystem 0.8.1, whose own ``dscli start`` reads the same file of
defaults; it leaves the worker behind in the background, so it is not used here.
"""

import json
import shutil
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kveik.config import YuanrongSettings
from kveik.errors import ConfigError
from kveik.launch.store_processes import StoreProcess

#: The worker's port unless told otherwise, as its own default; etcd takes the next two.
WORKER_PORT = 31501
_MIB = 1 << 20
_HEALTH_S = 2.0
#: The worker's share of the memory that is free, and its least: it needs room for several large blocks.
_MEMORY_SHARE, LEAST_MEMORY_BYTES = 0.25, 256 * _MIB
#: A path of a Unix socket is cut at 108 characters; the worker adds a name of its own to its folder.
_SOCKET_FOLDER_CHARS = 80

#: Folders of the worker, without its logs.
_NO_LOGS = ("probe", "rocksdb", "uds")

#: Other values than the worker's own, and why.
SETTINGS: Mapping[str, str] = {
    # A dead node's blocks count as there until the second time is over: 60 and 300 s by default.
    "node_timeout_s": "5",
    "node_dead_timeout_s": "10",
    # Warnings only, and little of them: at level 0 a fault writes tens of megabytes a minute.
    "minloglevel": "1",
    "max_log_size": "50",
    "max_log_file_num": "3",
    # Streams are not used, and have several hundred threads.
    "sc_thread_num": "1",
    "master_sc_thread_num": "1",
    "sc_scan_thread_num": "1",
    "sc_regular_socket_num": "1",
    "sc_stream_socket_num": "1",
}


@dataclass(frozen=True, slots=True)
class YuanrongTrial:
    """One machine's etcd and worker. ``host`` is an address of this machine; ``folder`` holds all of their files."""

    folder: Path
    worker_port: int
    etcd_port: int
    etcd_peer_port: int
    memory_bytes: int
    host: str = "127.0.0.1"

    @property
    def worker(self) -> str:
        """Where the worker listens."""
        return f"{self.host}:{self.worker_port}"

    @property
    def etcd(self) -> str:
        """Where etcd listens."""
        return f"{self.host}:{self.etcd_port}"

    @property
    def ready_file(self) -> Path:
        """The file that the worker makes when it serves."""
        return self.folder / "datasystem" / "probe" / "ready"

    @property
    def socket_folder(self) -> Path:
        """Where the worker's Unix sockets lie."""
        return self.folder / "datasystem" / "uds"

    @property
    def settings(self) -> YuanrongSettings:
        """How an agent uses it."""
        return YuanrongSettings(worker=self.worker)

    def processes(self, package: Path, etcd: str, environ: Mapping[str, str]) -> list[StoreProcess]:
        """What is started, in this order. ``package`` is the folder of the client's package, which has the worker."""
        if problem := why_not(self):
            raise ConfigError(problem)
        defaults = json.loads((package / "worker_config.json").read_text(encoding="utf8"))
        command = worker_command(package, worker_flags(defaults, self))
        return [
            StoreProcess("etcd", etcd_command(etcd, self), lambda: is_healthy(self.etcd)),
            StoreProcess("datasystem-worker", command, self.ready_file.exists, worker_environment(package, environ)),
        ]

    def clear(self) -> None:
        """Remove what an earlier trial left in the folder, but its logs: an old etcd would look for old workers."""
        for leftover in (self.folder / "etcd", *(self.folder / "datasystem" / name for name in _NO_LOGS)):
            shutil.rmtree(leftover, ignore_errors=True)


def etcd_program() -> str:
    """etcd. Raises :class:`ConfigError` that says how to get it."""
    found = shutil.which("etcd")
    if found is None:
        raise ConfigError("etcd is not installed here, and workers find each other by it: apt-get install etcd-server")
    return found


def is_healthy(etcd: str) -> bool:
    """Whether the etcd at this address says that it is."""
    try:
        with urllib.request.urlopen(f"http://{etcd}/health", timeout=_HEALTH_S) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def fitting_memory(available_bytes: int) -> int:
    """How much memory the worker gets unless told otherwise, in whole MiB."""
    return max(LEAST_MEMORY_BYTES, int(available_bytes * _MEMORY_SHARE) // _MIB * _MIB)


def why_not(trial: YuanrongTrial) -> str:
    """What stands against this trial, if anything does."""
    if len(str(trial.socket_folder)) > _SOCKET_FOLDER_CHARS:
        return (
            f"the folder {trial.folder} has a long name: sockets in {trial.socket_folder} need at most "
            f"{_SOCKET_FOLDER_CHARS} characters; choose a shorter one with --logs"
        )
    if trial.memory_bytes < LEAST_MEMORY_BYTES:
        return f"--memory is {trial.memory_bytes} bytes, expected at least {LEAST_MEMORY_BYTES}"
    return ""


def etcd_command(binary: str, trial: YuanrongTrial) -> list[str]:
    """One etcd for all workers of the cluster."""
    client, peer = f"http://{trial.etcd}", f"http://{trial.host}:{trial.etcd_peer_port}"
    return [
        binary,
        "--name=kveik-trial",
        f"--data-dir={trial.folder / 'etcd'}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=kveik-trial={peer}",
        "--log-level=warn",
    ]


def worker_flags(defaults: Mapping[str, object], trial: YuanrongTrial) -> dict[str, str]:
    """All flags of the worker. ``defaults``: the package's ``worker_config.json``, a mapping with ``value`` a flag."""
    flags = {name: _value(entry) for name, entry in defaults.items()}
    own = {
        "worker_address": trial.worker,
        "etcd_address": trial.etcd,
        "shared_memory_size_mb": str(trial.memory_bytes // _MIB),
        **{name: value for name, value in SETTINGS.items() if name in flags},
    }
    return {
        name: str(trial.folder / value[2:]) if value.startswith("./") else value
        for name, value in (flags | own).items()
        if value
    }


def worker_command(package: Path, flags: Mapping[str, str]) -> list[str]:
    """The worker in the foreground."""
    return [str(package / "datasystem_worker"), *(f"--{name}={value}" for name, value in flags.items())]


def worker_environment(package: Path, environ: Mapping[str, str]) -> dict[str, str]:
    """What its environment needs beside ours: it brings its own libraries."""
    found = environ.get("LD_LIBRARY_PATH", "")
    return {"LD_LIBRARY_PATH": f"{package / 'lib'}{':' if found else ''}{found}"}


def section(trial: YuanrongTrial) -> str:
    """What goes into kveik.toml."""
    return f'[yuanrong]\nworker = "{trial.worker}"\n'


def on_several_nodes(trial: YuanrongTrial) -> str:
    """How it is done for real."""
    memory_mb = trial.memory_bytes // _MIB
    return f"""\
On several nodes:
  - one etcd for all of them, of three or five members; never one on each node, which makes as many clusters
  - on each node one worker, on an address that the other nodes reach, kept by something that starts it again:
      dscli start -w --worker_address NODE_IP:{trial.worker_port} --etcd_address ETCD1:2379,ETCD2:2379,ETCD3:2379 \\
        --shared_memory_size_mb {memory_mb} --node_timeout_s {SETTINGS["node_timeout_s"]} \\
        --node_dead_timeout_s {SETTINGS["node_dead_timeout_s"]} --minloglevel {SETTINGS["minloglevel"]}
    both times are seconds; the memory counts against a container's memory limit, not against its --shm-size
  - on each node [yuanrong] worker = "NODE_IP:{trial.worker_port}", the node's own worker
It has no passwords unless you set them up: keep both ports within the cluster's network."""


def _value(entry: object) -> str:
    return str(entry.get("value", "")) if isinstance(entry, Mapping) else str(entry)
