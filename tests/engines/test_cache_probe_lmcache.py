"""``kveik probe cache`` on an engine with LMCache's connector and server: another cache, told by its own counters."""

import contextlib
import json
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.cli.main import main
from kveik.engine.launch import Engine, EngineSpec
from kveik.engine.process import ServerProcess, free_port
from tests.engines.engine import BOOT_S, core_of

PYTHON = Path(__file__).resolve().parents[2] / ".venv-lmcache/bin/python"
MODEL = "smollm2-135m-instruct"
ENVIRONMENT = {"LMCACHE_TRACK_USAGE": "false", "PYTHONHASHSEED": "0"}
SERVER = "from lmcache.cli.main import main; main()"

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not PYTHON.exists(), reason="no LMCache environment: make lmcache"),
]


def listens(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1.0):
        return True
    return False


@pytest.fixture
def server(tmp_path: Path) -> Iterator[tuple[int, int]]:
    """LMCache's server; its port, and the one where it shows what it counts."""
    port, counting = free_port(), free_port()
    command = [str(PYTHON), "-c", SERVER, "server", "--host", "127.0.0.1", "--port", str(port)]
    command += ["--http-port", str(counting), "--prometheus-port", str(free_port())]
    command += ["--l1-size-gb", "1", "--l1-init-size-gb", "1", "--eviction-policy", "LRU"]
    command += ["--supported-transfer-mode", "auto", "--shm-name", f"kveik-probe-{os.getpid()}"]
    with ServerProcess("lmcache", command, {**os.environ, **ENVIRONMENT}, tmp_path / "lmcache.log") as process:
        process.start()
        process.wait_ready(lambda: listens(port), timeout_s=BOOT_S)
        yield port, counting


@pytest.fixture
def engine(server: tuple[int, int], model: Callable[[str], Path], tmp_path: Path) -> Iterator[Engine]:
    transfer = {
        "kv_connector": "LMCacheMPConnector",
        "kv_connector_module_path": "lmcache.integration.vllm.lmcache_mp_connector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"lmcache.mp.host": "127.0.0.1", "lmcache.mp.port": server[0]},
    }
    spec = EngineSpec(
        name="lmcache-engine",
        python=str(PYTHON),
        model=model(MODEL),
        port=free_port(),
        dtype="bfloat16",
        max_model_tokens=2048,
        kv_cache_bytes=100 << 20,
        cores=core_of(0),
        extra_arguments=["--kv-transfer-config", json.dumps(transfer)],
        extra_environment=ENVIRONMENT,
    )
    with Engine(spec, os.environ, tmp_path) as started:
        started.start()
        started.wait_ready(BOOT_S)
        yield started


def test_lmcaches_hit_is_found_right_and_counted_by_its_server(
    engine: Engine, server: tuple[int, int], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    where = ["--engine", engine.spec.url, "--store-metrics", f"http://127.0.0.1:{server[1]}"]
    logs = ["--log", str(tmp_path / "lmcache-engine.log"), "--log", str(tmp_path / "lmcache.log")]
    code = main(["probe", "cache", *where, *logs, "--prompt-tokens", "1100", "--json"])
    told = capsys.readouterr()
    assert told.out, told.err
    found = json.loads(told.out)
    assert (found["result"], code) == ("works", 0), found
    assert found["connector"] == "lmcache"
    assert found["used_tokens"] >= 1024 - 256
    assert found["filled"]["stored"] == {"chunks": 4}
    assert found["again"]["found"] == {"tokens": 1024}
    assert any("Retrieved 1024 tokens" in line for line in found["log"]["lines"])
