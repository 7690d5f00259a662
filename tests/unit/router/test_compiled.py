"""One request path, interpreted or compiled: which of both runs is told, and all that is compiled is there."""

import os
import tomllib
from pathlib import Path

from compiled_router import COMPILED
from kveik.router.compiled import is_compiled

ROOT = Path(__file__).resolve().parents[3]


def test_a_router_knows_whether_it_is_compiled() -> None:
    """What runs these tests on compiled code sets the path: then they must not run on the sources unnoticed."""
    first = os.environ.get("PYTHONPATH", "").partition(os.pathsep)[0]
    assert is_compiled() is (bool(first) and Path(first).resolve() == COMPILED)


def test_each_module_that_is_to_be_compiled_exists() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf8"))
    modules = project["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    assert [name for name in modules if not (ROOT / name.lstrip("/")).is_file()] == []
    assert "/src/kveik/router/exchange.py" in modules, "by which a router tells"
    assert modules == sorted(modules)
