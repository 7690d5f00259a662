"""A whole testbed over stand-in engines: what is started, restarted, and gone in the end.

The engines' "Python" is a script that answers the check for vLLM and serves the simulated engine on
the port of its command line; agent, tethers and process groups are the real ones.
"""

import itertools
import json
import os
import re
import shutil
import stat
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from kveik.agent.client import AgentClient
from kveik.clock import Deadline
from kveik.engine.client import CompletionRequest
from kveik.errors import ConfigError, EngineStartError
from kveik.verify.testbed import Testbed, TestbedSpec
from tests.agents import load_blocks, some_keys, store_blocks, wait_until

MODEL_CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_size": 64}

STAND_IN = """#!{python}
import json, sys, threading
from kveik.simulate.engine import SimulatedEngine

if sys.argv[1] == "-c":
    sys.exit(0)
value = dict(zip(sys.argv, sys.argv[1:]))
print("arguments:", json.dumps(sys.argv[1:]), flush=True)
if {breaks}:
    sys.exit("the model does not fit")
with SimulatedEngine(port=int(value["--port"]), model=value["--served-model-name"]):
    threading.Event().wait()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Where testbeds put their folders and logs; short, since sockets lie in it.

    After ``tmp_path``: pytest makes its own folders where temporary files go.
    """
    folder = Path(tempfile.mkdtemp(prefix="bed-"))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    shutil.rmtree(folder)


def spec_in(folder: Path, *, breaks: bool = False, **given: object) -> TestbedSpec:
    model = folder / "model"
    model.mkdir()
    (model / "config.json").write_text(json.dumps(MODEL_CONFIG))
    python = folder / "python"
    python.write_text(STAND_IN.format(python=sys.executable, breaks=breaks))
    python.chmod(python.stat().st_mode | stat.S_IXUSR)
    options: dict[str, object] = {
        "model": model,
        "engine_python": str(python),
        "agent_python": sys.executable,
        "max_model_tokens": 1024,
        "engine_tokens": 2048,
        "shared_tokens": 1024,
    }
    return TestbedSpec(**(options | given))  # type: ignore[arg-type]


def alive(pid: int) -> bool:
    return Path(f"/proc/{pid}/cmdline").exists() and bool(Path(f"/proc/{pid}/cmdline").read_bytes())


def arguments_of(log: Path) -> dict[str, str]:
    (line,) = [line for line in log.read_text().splitlines() if line.startswith("arguments:")]
    words = json.loads(line.removeprefix("arguments:"))
    return dict(itertools.pairwise(words))


def test_two_engines_and_an_agent_serve_and_nothing_of_them_is_left(tmp_path: Path, temporary: Path) -> None:
    said: list[str] = []
    with Testbed(spec_in(tmp_path, connector={"read_back_every": 1}), said.append) as testbed:
        first, second = testbed.subjects()
        for subject in (first, second):
            assert len(subject.client.complete(CompletionRequest((1, 2, 3), 2), subject.model).token_ids) == 2
        folder = testbed.agent.log.parent
        assert (folder / "blocks").is_dir()
        given = [arguments_of(folder / f"{engine.spec.name}.log") for engine in testbed.engines]
        settings = json.loads(given[0]["--kv-transfer-config"])["kv_connector_extra_config"]
        assert settings["socket"] == str(folder / "agent.sock")
        assert (settings["read_back_every"], settings["lookup_deadline_s"]) == (1, 5.0)
        assert given[0]["--port"] != given[1]["--port"]
        pids = [
            server._process.pid for server in (testbed.agent, *(e.process for e in testbed.engines)) if server._process
        ]
        assert len(pids) == 3
    assert not folder.exists()
    wait_until(lambda: not any(map(alive, pids)), "every process has ended")
    assert list(temporary.iterdir()) == []
    assert [line.partition(" ")[0] for line in said if "serves after" in line] == ["engine-a", "engine-b"]


def test_an_engine_that_is_restarted_is_another_process_at_the_same_place(tmp_path: Path) -> None:
    said: list[str] = []
    with Testbed(spec_in(tmp_path), said.append) as testbed:
        first, _ = testbed.subjects()
        process = testbed.engines[0].process._process
        assert process is not None
        before, url = process.pid, first.client.url
        assert first.restart is not None
        first.restart()
        again = testbed.engines[0].process._process
        assert again is not None
        assert again.pid != before
        assert first.client.url == url
        assert first.client.health()
    assert re.search(r"engine-a killed with -9 and serving again after \d+ s", "\n".join(said))


def test_on_two_nodes_each_engine_has_an_agent_of_its_own_and_a_restart_leaves_only_the_store(
    tmp_path: Path, temporary: Path
) -> None:
    config = tmp_path / "stores.toml"
    config.write_text(f'[agent]\nfilesystem = "{tmp_path / "shared"}"\n')
    said: list[str] = []
    with Testbed(spec_in(tmp_path, nodes=2, store_config=config), said.append) as testbed:
        sockets = [engine.spec.connector["socket"] for engine in testbed.engines if engine.spec.connector]
        assert sockets == [node.socket for node in testbed.nodes]
        assert len(set(sockets)) == 2
        one, other = (connected(node.socket) for node in testbed.nodes)
        keys = some_keys(3)
        assert store_blocks(one, keys) == ["stored"] * 3
        first, second = testbed.subjects()
        assert first.written is not None
        first.written()
        assert load_blocks(other, keys) == ["hit"] * 3

        assert second.restart is not None
        second.restart()
        again = connected(testbed.nodes[1].socket)
        assert again.stats(Deadline.after(10))["arena"]["blocks"] == 0
        assert load_blocks(again, keys) == ["hit"] * 3
        for client in (one, other, again):
            client.close()
    assert list(temporary.iterdir()) == []


def connected(socket: str) -> AgentClient:
    return AgentClient.connect(socket, role="test", prefault=False)


def test_an_engine_that_does_not_start_leaves_its_log_and_nothing_else(tmp_path: Path, temporary: Path) -> None:
    said: list[str] = []
    with (
        pytest.raises(EngineStartError, match="the model does not fit"),
        Testbed(spec_in(tmp_path, breaks=True, filesystem=False), said.append),
    ):
        pytest.fail("a testbed without engines was entered")
    (kept,) = temporary.iterdir()
    assert said[-1] == f"the logs are kept in {kept}"
    assert {log.name for log in kept.iterdir()} >= {"agent.log", "engine-a.log"}
    assert not list(Path("/dev/shm").glob(f"kveik-testbed-{os.getpid()}.*"))


def test_trouble_while_it_runs_keeps_the_logs_and_ctrl_c_does_not(tmp_path: Path, temporary: Path) -> None:
    spec = spec_in(tmp_path)
    said: list[str] = []
    with pytest.raises(RuntimeError, match="trouble"), Testbed(spec, said.append):
        raise RuntimeError("trouble")
    assert [folder.name.startswith("kveik-logs-") for folder in temporary.iterdir()] == [True]
    with pytest.raises(KeyboardInterrupt), Testbed(spec, said.append):
        raise KeyboardInterrupt
    assert len(list(temporary.iterdir())) == 1


def test_a_model_that_cannot_be_read_is_told_before_anything_starts(tmp_path: Path, temporary: Path) -> None:
    spec = spec_in(tmp_path)
    (spec.model / "config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"config\.json"), Testbed(spec, print):
        pytest.fail("a testbed without a model was entered")
    assert list(temporary.iterdir()) == []
