"""Mooncake on one machine, to try it: its processes, the settings that fit them, and what is done for real."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kveik.config_stores import MooncakeSettings
from kveik.errors import ConfigError
from kveik.launch.store_processes import StoreProcess, listening
from kveik.store.mooncake_library import PACKAGES

_MIB = 1 << 20
LOOPBACK = "127.0.0.1"
#: The Mooncake master's own default, and the ports after it.
MASTER_PORT, HTTP_PORT, METADATA_PORT, LENDER_PORT = 50051, 50052, 50053, 50054


@dataclass(frozen=True, slots=True)
class MooncakeTrial:
    """A master and one process that lends ``memory_bytes``, on loopback; ``metadata``: the HTTP service, too."""

    memory_bytes: int
    metadata: bool = False
    master_port: int = MASTER_PORT
    http_port: int = HTTP_PORT
    metadata_port: int = METADATA_PORT
    lender_port: int = LENDER_PORT

    @property
    def settings(self) -> MooncakeSettings:
        """Of an agent that uses it."""
        return MooncakeSettings(
            master=f"{LOOPBACK}:{self.master_port}",
            master_http=f"{LOOPBACK}:{self.http_port}",
            metadata=self._metadata,
            host=LOOPBACK,
        )

    @property
    def _metadata(self) -> str:
        return f"http://{LOOPBACK}:{self.metadata_port}/metadata" if self.metadata else "P2PHANDSHAKE"

    def processes(self) -> list[StoreProcess]:
        """What to start, in order. Raises :class:`ConfigError` that says what to install."""
        # Its log has a line of several kilobytes every ten seconds otherwise.
        words = [f"--rpc_port={self.master_port}", f"--rpc_address={LOOPBACK}", "--enable_metric_reporting=false"]
        words += [f"--metrics_port={self.http_port}", f"--metrics_host={LOOPBACK}"]
        if self.metadata:
            words += ["--enable_http_metadata_server=true", f"--http_metadata_server_host={LOOPBACK}"]
            words += [f"--http_metadata_server_port={self.metadata_port}"]
        lender = [
            f"--host={LOOPBACK}",
            f"--port={self.lender_port}",
            f"--global_segment_size={self.memory_bytes // _MIB}MB",
            f"--master_server_address={LOOPBACK}:{self.master_port}",
            f"--metadata_server={self._metadata}",
        ]
        environment = {"MC_TCP_BIND_ADDRESS": LOOPBACK, "GLOG_minloglevel": "1"}
        return [
            StoreProcess("mooncake-master", [program("mooncake_master"), *words], listening(self.master_port)),
            StoreProcess(
                "mooncake-lender", [program("mooncake_client"), *lender], listening(self.lender_port), environment
            ),
        ]

    def section(self) -> str:
        """What to write into kveik.toml."""
        lines = ["[mooncake]", f'master = "{self.settings.master}"', f'master_http = "{self.settings.master_http}"']
        if self.metadata:
            lines.append(f'metadata = "{self.settings.metadata}"')
        return "\n".join([*lines, f'host = "{LOOPBACK}"'])


def program(name: str) -> str:
    """One of Mooncake's programs: beside this Python, or in PATH. Raises :class:`ConfigError` if there is none."""
    beside = Path(sys.executable).with_name(name)
    found = str(beside) if beside.is_file() else shutil.which(name)
    if found is None:
        raise ConfigError(f"there is no {name} here; install {PACKAGES}")
    return found


def for_real() -> Sequence[str]:
    """How it is done on several nodes, a line each."""
    return (
        "One machine runs the master, on an address that all nodes reach:",
        "  mooncake_master --rpc_port=50051 --metrics_port=9003 --enable_metric_reporting=false",
        "Each node lends memory by a process of its own, which outlives engines and agent; host is the agent's, too:",
        "  mooncake_client --host=THIS_NODE --global_segment_size=200GB --master_server_address=MASTER:50051 \\",
        "    --metadata_server=P2PHANDSHAKE --protocol=rdma --device_names=mlx5_0",
        "and its agent has",
        '  [mooncake]  master = "MASTER:50051"  master_http = "MASTER:9003"  protocol = "rdma"  device = "mlx5_0"',
        "On Ascend install mooncake-transfer-engine-npu; protocol is what that build has (ascend, ascend_direct).",
        "After the end of a mooncake_client wait 12 s before its next start: the master forgets it only then.",
    )
