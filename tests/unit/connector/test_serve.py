"""How an engine's processes import: fast, and not what they do not need."""

import gc
import json
import subprocess
import sys

import pytest

from kveik.connector.serve import OF_CHILDREN, uncollected

#: As a child that vLLM spawns imports the module that was started (multiprocessing/spawn.py).
CHILD = """
import gc, json, runpy, sys
runpy.run_module("kveik.connector.serve", run_name="__mp_main__")
print(json.dumps([gc.isenabled(), gc.get_freeze_count(), sorted(sys.modules)]))
"""


def test_collections_go_on_after_imports_without_what_was_there() -> None:
    with uncollected():
        assert not gc.isenabled()
    assert gc.isenabled()
    assert gc.get_freeze_count() > 1000
    gc.unfreeze()


def test_after_a_failed_import_collections_go_on_too() -> None:
    with pytest.raises(ImportError), uncollected():
        raise ImportError
    assert gc.isenabled()
    gc.unfreeze()


def test_a_spawned_process_has_what_it_needs_and_no_api_server() -> None:
    pytest.importorskip("vllm")
    done = subprocess.run([sys.executable, "-c", CHILD], capture_output=True, text=True, check=True)
    enabled, frozen, modules = json.loads(done.stdout.splitlines()[-1])
    assert enabled
    assert frozen > 100_000
    assert set(OF_CHILDREN) <= set(modules)
    assert not {"kveik.connector.serving", "vllm.entrypoints.cli.serve", "vllm.entrypoints.launchers.launcher"} & set(
        modules
    )
