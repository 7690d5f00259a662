"""``kveik sim-engine``: run a simulated engine in the foreground."""

import argparse
import asyncio
import gc
import logging
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kveik.cli.settings_flags import add_settings, given_settings, log_to_stderr
from kveik.config import SimEngineSettings, load
from kveik.errors import ConfigError, KveikError

if TYPE_CHECKING:
    from kveik.simulate.asks import Render

EPILOG = """\
It speaks vLLM's HTTP API over made-up answers; card, headers, metrics and log say "simulated".
GET /sim shows counters and fault switches; POST /sim sets switches, for example:
  curl -d '{"hang": true}' http://127.0.0.1:8000/sim
  curl -d '{"die_after_chunks": 5, "die_by": "mid_line", "every": 3}' http://127.0.0.1:8000/sim
  curl -d '{"reset": true}' http://127.0.0.1:8000/sim
Settings come from --config, then from the environment (KVEIK_SIM_ENGINE_NAME), then from flags.

exit codes:
  0  stopped by a signal
  2  a setting is not valid
  3  it could not start: the message says why
"""

logger = logging.getLogger("kveik.simulate")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: one flag for each setting."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_settings(parser, "sim_engine", "TOML file with a [sim_engine] section")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    log_to_stderr()
    try:
        settings = load(SimEngineSettings, file=args.config, environ=os.environ, given=given_settings(args))
        return _serve(settings)
    except ConfigError as error:
        print(f"kveik sim-engine: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik sim-engine: {error}", file=sys.stderr)
        return 3


def _serve(settings: SimEngineSettings) -> int:
    try:
        import uvloop

        from kveik.simulate.server import SimServer

        render = _render(settings.tokenizer) if settings.tokenizer else None
    except ModuleNotFoundError as error:
        print(f"kveik sim-engine: {error.name} is missing; install kveik[router]", file=sys.stderr)
        return 3
    server = SimServer(settings, render=render, on_crash=lambda: os.kill(os.getpid(), signal.SIGKILL))

    async def serve() -> None:
        stop = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            asyncio.get_running_loop().add_signal_handler(number, stop.set)
        await server.open()
        print(f"kveik sim-engine: SIMULATED model {settings.model} at {server.url}", flush=True)
        await stop.wait()
        await server.shut(settings.drain_s)

    gc.freeze()  # what is loaded by now stays: no need to look through it again and again
    uvloop.run(serve())
    return 0


def _render(folder: str) -> "Render":
    from kveik.router.model_folder import Rendering
    from kveik.router.tokenizer import TokenizerFiles

    rendering = Rendering(Path(folder), TokenizerFiles())
    return lambda path, body: rendering.prompt(path.encode(), body).packed
