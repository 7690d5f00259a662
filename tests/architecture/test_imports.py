"""What may load what: the layers hold, and nothing heavy comes in with ``import kveik``."""

import subprocess
import sys
from ast import parse
from pathlib import Path

import pytest

from tests.vllm_need import SOURCE, imported_at_load, needs_vllm

PACKAGE = SOURCE / "kveik"
ROOT = SOURCE.parent

REFUSE_ENGINES = """
import importlib, sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "vllm", "transformers"}:
            raise AssertionError(f"{name} is imported")

sys.meta_path.insert(0, Refuse())
for name in sys.argv[1:]:
    importlib.import_module(name)
loaded = sorted(set(sys.modules) & {"torch", "vllm", "transformers"})
assert not loaded, loaded
"""


def module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def load_without_engines(*modules: str) -> None:
    result = subprocess.run(
        [sys.executable, "-c", REFUSE_ENGINES, *modules], check=False, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr


def test_importing_kveik_loads_neither_torch_nor_vllm() -> None:
    load_without_engines("kveik")


def test_every_module_outside_the_connector_loads_without_torch_and_vllm() -> None:
    modules = [file for file in PACKAGE.rglob("*.py") if "connector" not in file.parts]
    load_without_engines(*(module_name(file) for file in modules if not optional(file)))


def optional(file: Path) -> bool:
    """Modules of an extra (plots) or with verify's tensor checks, which say so by their place."""
    plots = {PACKAGE / "bench" / "plot.py", PACKAGE / "bench" / "breakeven_plot.py"}
    return file in plots or file == PACKAGE / "verify" / "tensors.py"


def test_the_decisions_of_the_connector_load_without_torch_and_vllm() -> None:
    names = ("__init__.py", "plan.py", "prefill_rate.py", "load_choice.py", "load_advice.py", "sounding.py")
    pure = [PACKAGE / "connector" / name for name in names]
    assert [file.name for file in pure if needs_vllm(file)] == []
    load_without_engines(*map(module_name, pure))


@pytest.mark.parametrize(
    ("package", "unknown"),
    [
        ("router", {"store", "agent"}),  # it learns of blocks from events, and touches none
        ("telemetry", {"kv", "store", "agent", "engine"}),  # it listens to records
        ("store", {"agent", "telemetry", "connector"}),
    ],
)
def test_a_package_does_not_know_those_it_is_walled_off_from(package: str, unknown: set[str]) -> None:
    known = {
        name.split(".")[1]
        for file in (PACKAGE / package).rglob("*.py")
        for name in imported_at_load(parse(file.read_text(encoding="utf8")))
        if name.startswith("kveik.")
    }
    assert known & unknown == set()


def test_importing_kveik_is_quick_because_it_loads_nothing_else() -> None:
    code = "import sys; before = set(sys.modules); import kveik; print(sorted(set(sys.modules) - before))"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert loaded.strip() == "['kveik']"


def test_the_import_contract_holds_and_every_package_has_its_layer() -> None:
    lint_imports = str(Path(sys.executable).with_name("lint-imports"))
    command = [lint_imports, "--no-cache", "--no-logo"]
    result = subprocess.run(command, cwd=ROOT, check=False, capture_output=True, text=True)
    assert result.returncode == 0, result.stdout
