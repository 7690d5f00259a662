"""Real vLLM engines, real models, a real agent.

Skipped, with the reason, where the vLLM environment or the models have not been set up; ``make test``
sets them up. Every engine is a process of its own and is killed by the test that started it.
"""

import random
import tempfile
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kveik.agent.node import NodeAgent
from kveik.config import AgentSettings
from tests.engines.engine import Engine


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if Path(item.path).parent == Path(__file__).parent:
            item.add_marker(pytest.mark.engine)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Generator[None, Any, Any]:
    """A test that fails shows what its engines counted and logged."""
    report = yield
    if report.when == "call" and report.failed:
        report.sections += [(f"engine {engine.log.name}", engine.story()) for engine in Engine.running]
    return report


@pytest.fixture(scope="session")
def model(models: Path) -> Callable[[str], Path]:
    """The folder of a prepared model, by name."""

    def find(name: str) -> Path:
        if not (models / name).is_dir():
            pytest.skip(f"no model {name} in {models}; `make test` prepares it")
        return models / name

    return find


@dataclass
class RunningAgent:
    """An agent in the test's own process, and the connector settings that reach it."""

    node: NodeAgent
    settings: AgentSettings

    @property
    def extra(self) -> dict[str, Any]:
        # The default deadlines are for machines that are not also running a test suite.
        patience = {"lookup_deadline_s": 10.0, "load_deadline_s": 60.0, "load_choice": "always"}
        return {"socket": self.settings.socket, "read_back_every": 1, **patience}

    def restart(self) -> None:
        """Stop and start again on the same arena and folder."""
        self.node.close()
        self.node = NodeAgent(self.settings).start()


@pytest.fixture(scope="module")
def agent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningAgent]:
    """An agent with an arena of 512 MiB in shared memory: on a disk, whoever touches it waits for its writing back."""
    folder = tmp_path_factory.mktemp("agent")
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="kveik-test-") as memory:
        settings = AgentSettings(socket=str(folder / "agent.sock"), arena=f"{memory}/arena", arena_bytes=512 << 20)
        running = RunningAgent(NodeAgent(settings).start(), settings)
        yield running
        running.node.close()


@pytest.fixture(scope="module")
def start_engine(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., Engine]]:
    """Start an engine by model name; all are killed at the end of the module."""
    engines: list[Engine] = []
    logs = tmp_path_factory.mktemp("engines")

    def start(name: str, **options: Any) -> Engine:
        engine = Engine(engine_python, model(name), logs / f"{len(engines)}-{name}.log", **options)
        engines.append(engine)
        return engine

    yield start
    for engine in engines:
        engine.kill()


@pytest.fixture(scope="session")
def tokens() -> Callable[[int, int], list[int]]:
    """``tokens(count, seed)``: token ids that every tiny model knows."""

    def make(count: int, seed: int) -> list[int]:
        source = random.Random(seed)
        return [source.randrange(10, 500) for _ in range(count)]

    return make
