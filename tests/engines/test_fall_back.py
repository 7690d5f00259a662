"""An engine that cannot compile is started in the next simpler mode, serves, and says why it is degraded."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.process import free_port
from kveik.errors import SuperviseError
from kveik.supervise.client import ControlClient
from tests.agents import wait_until

PATIENCE_S = 800.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]

#: No compiler until the file is there: an eager engine has a few small functions to compile at its first request.
COMPILER = '#!/bin/sh\n[ -e {0}/there ] && exec c++ "$@"\nexit 1\n'


@pytest.fixture
def folder() -> Iterator[Path]:
    """A short path, since it holds Unix sockets."""
    made = Path(tempfile.mkdtemp(prefix="kveik-fall-"))
    yield made
    shutil.rmtree(made, ignore_errors=True)


def kveik(command: str, config: Path, *arguments: str) -> "subprocess.Popen[str]":
    words = [sys.executable, "-m", "kveik.cli.main", command, "--config", str(config), *arguments]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def mode_of_engine(control: ControlClient) -> str:
    try:
        return control.view("engine-1").mode
    except SuperviseError:
        return ""


def test_an_engine_that_cannot_compile_starts_eager_and_says_why(
    engine_python: str, model: Callable[[str], Path], folder: Path
) -> None:
    config, fleet, port = folder / "kveik.toml", f"fall-{os.getpid()}", free_port()
    compiler = folder / "compiler"
    compiler.write_text(COMPILER.format(folder))
    compiler.chmod(0o755)
    # Nothing compiled before may be found, or no compiler is needed.
    environment = f"CXX={compiler} VLLM_CACHE_ROOT={folder}/vllm TORCHINDUCTOR_CACHE_DIR={folder}/torch"
    config.write_text(
        f'[fleet]\nname = "{fleet}"\nstate_folder = "{folder}/state"\nfirst_port = {free_port()}\ndrain_s = 2\n'
        f'[engine]\npython = "{engine_python}"\nmodel = "{model("tiny-qwen3")}"\nenvironment = "{environment}"\n'
        'dtype = "float32"\nmax_model_tokens = 512\nkv_cache_bytes = "64 MiB"\nshared_cache = false\n'
        f"kv_events = false\n[router]\nport = {port}\ndrain_s = 1\n"
    )
    control = ControlClient(str(folder / "state" / "local" / "control.sock"))
    try:
        up = kveik("up", config, "-d")
        wait_until(lambda: mode_of_engine(control) == "eager", "the simpler mode is tried", PATIENCE_S)
        (folder / "there").touch()
        told, _ = up.communicate(timeout=PATIENCE_S)
        assert up.returncode == 0, told
        engine = control.view("engine-1")
        assert (engine.state, engine.mode) == ("ready", "eager")
        assert "compiling failed: torch._inductor.exc.InductorError: InvalidCxxCompiler" in engine.degraded
        router = EngineClient(f"http://127.0.0.1:{port}")
        assert (
            router.complete(CompletionRequest(prompt=(5, 6, 7), max_tokens=2), "tiny-qwen3").finish_reason == "length"
        )
    finally:
        with contextlib.suppress(SuperviseError):
            control.status()
            kveik("down", config, "--now", "--forget").communicate(timeout=PATIENCE_S)
