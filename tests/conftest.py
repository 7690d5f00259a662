"""What all tests share: where engines and models are, and which tests run in which environment.

Two environments run the tests. ``.venv`` has no vLLM and runs everything that does not need it;
``.venv-vllm`` runs the rest, chosen with ``-m vllm``. A test file need not say which: its imports do,
its mark ``engine``, or that a test asks for ``models``, which vLLM's environment makes.
"""

import importlib.util
import os
import signal
import sys
from pathlib import Path

import hypothesis
import pytest

from tests.vllm_need import needs_vllm

# A busy machine is no failure: examples have no time limit of their own, only tests have. But where CI is set they are
# others each time, so that few of them each time will do; `pytest --hypothesis-profile=thorough` takes its time.
hypothesis.settings.register_profile(
    "kveik", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow], max_examples=50
)
hypothesis.settings.register_profile("thorough", hypothesis.settings.get_profile("kveik"), max_examples=2000)
hypothesis.settings.load_profile("kveik")

ROOT = Path(__file__).resolve().parents[1]
HAS_VLLM = importlib.util.find_spec("vllm") is not None
ENGINE_TEST_TIMEOUT_S = 900
ENGINE_PYTHON = os.environ.get("KVEIK_ENGINE_PYTHON") or str(ROOT / ".venv-vllm/bin/python")
MODELS = Path(os.environ.get("KVEIK_MODELS") or ROOT / ".kveik/models")
for name in [name for name in os.environ if name.startswith("KVEIK_")]:
    del os.environ[name]  # they are settings: a test sets its own
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # As in the background of a script. Tests send it to their children, who would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_report_header() -> str:
    return "vLLM: installed" if HAS_VLLM else "vLLM: not in this environment, tests that need it are left out"


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Leave out test files that could not be imported here."""
    is_test = collection_path.name.startswith("test_") and collection_path.suffix == ".py"
    return True if is_test and not HAS_VLLM and needs_vllm(collection_path) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what needs vLLM, give tests with real engines the time that starting one takes, and set the order."""
    items.sort(key=lambda item: turn_of(item.path))
    for item in items:
        if " at 0x" in item.nodeid:  # workers that run tests side by side must call them the same
            raise pytest.UsageError(f"the name of {item.nodeid} differs from run to run: give its parameters ids")
        if item.get_closest_marker("engine"):
            item.add_marker("vllm")
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(ENGINE_TEST_TIMEOUT_S))
        elif needs_vllm(item.path) or "models" in getattr(item, "fixturenames", ()):
            item.add_marker("vllm")


def turn_of(path: Path) -> int:
    """When a file has its turn, so that no worker is idle at the end while another one has the last long file.

    Files with engines come first, since there is nothing longer. Those with services and faults wait a lot and mind
    a busy machine, so they come after most short ones, while which vLLM is installed; the router's fill up the end.
    """
    parts = path.relative_to(ROOT / "tests").parts
    if parts[0] == "engines":
        return 0
    if parts[0] != "unit":
        return 2
    return 3 if parts[1] == "router" else 1


@pytest.fixture(scope="session")
def engine_python() -> str:
    """The interpreter that has vLLM: this one, or that of ``.venv-vllm``."""
    python = sys.executable if HAS_VLLM else ENGINE_PYTHON
    if not Path(python).exists():
        pytest.skip(f"no vLLM environment at {python}: make .venv-vllm")
    return python


@pytest.fixture(scope="session")
def models() -> Path:
    """The folder of models that ``scripts/prepare_models.py`` makes."""
    if not MODELS.is_dir():
        pytest.skip(f"no models at {MODELS}: make models")
    return MODELS
