"""``kveik router``: run the router in the foreground."""

import argparse
import asyncio
import contextlib
import ctypes
import logging
import os
import signal
import sys
from pathlib import Path
from typing import Any

from kveik.cli.settings_flags import add_settings, given_settings, log_to_stderr
from kveik.config import RouterSettings, load
from kveik.errors import ConfigError, KveikError, RouterStartError

EPILOG = """\
Engines join by `kveik register`, by POST /fleet/engines, or from [[engines]] tables in --config:

  kveik router --port 8100 &
  kveik register --router http://127.0.0.1:8100 --engine http://127.0.0.1:8000 &
  curl http://127.0.0.1:8100/v1/chat/completions -H 'content-type: application/json' \\
       -d '{"model": "MODEL", "messages": [{"role": "user", "content": "Hello"}]}'
  curl http://127.0.0.1:8100/fleet

Settings come from --config, then from the environment (KVEIK_ROUTER_NAME), then from flags.
SIGHUP has the list of engines read again; it is also when the file changes.
SIGTERM and SIGINT let running requests finish for up to --drain-s seconds; a second one stops at once.

exit codes:
  0  stopped by a signal
  2  a setting is not valid
  3  the router could not start: the message says why and what to do
"""

logger = logging.getLogger("kveik.router")

_M_MMAP_THRESHOLD = -3


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments: one flag for each setting of the router."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    add_settings(parser, "router", "TOML file with a [router] section and [[engines]]")


def run(args: argparse.Namespace) -> int:
    """Serve until a signal comes."""
    log_to_stderr()
    try:
        settings = load(RouterSettings, file=args.config, environ=os.environ, given=given_settings(args))
        uvloop = _uvloop()
        _give_large_memory_back()
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, args.config))
    except ConfigError as error:
        print(f"kveik router: {error}", file=sys.stderr)
        return 2
    except KveikError as error:
        print(f"kveik router: {error}", file=sys.stderr)
        return 3
    return 0


def _give_large_memory_back() -> None:
    """Have freed blocks of a MiB or more returned to the system: when it doubles, the prefix table leaves some.

    glibc moves that limit up to 32 MiB by itself; other C libraries have no such function.
    """
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).mallopt(_M_MMAP_THRESHOLD, 1 << 20)


def _uvloop() -> Any:
    try:
        import uvloop
    except ImportError as error:
        raise RouterStartError(f"{error.name} is not installed: pip install 'kveik[router]'") from error
    return uvloop


async def _serve(settings: RouterSettings, config: Path | None) -> None:
    from kveik.router.app import running_router
    from kveik.router.compiled import is_compiled
    from kveik.telemetry.logs import LogStates

    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, _stop_or_exit, stop)
    async with running_router(settings, config=config, listener=LogStates(logger)) as app:
        loop.add_signal_handler(signal.SIGHUP, app.reload)
        kind = "compiled" if is_compiled() else "interpreted"
        logger.info("the %s router is ready at %s; engines join at %s/fleet/engines", kind, app.address, app.address)
        await stop.wait()
        logger.info("stopping: %d requests are under way", app.router.under_way)
    logger.info("the router has stopped")


def _stop_or_exit(stop: asyncio.Event) -> None:
    """The first signal lets requests finish, the second does not."""
    if stop.is_set():
        os._exit(130)
    stop.set()
