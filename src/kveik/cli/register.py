"""``kveik register``: a sidecar that keeps one engine registered with a router."""

import argparse
import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from kveik.clock import Deadline
from kveik.engine.client import EngineClient
from kveik.errors import ConfigError, EngineError, FleetError
from kveik.fleet.announcement import LEASE_DEFAULT_S, LEASE_MAX_S, LEASE_MIN_S, EngineAnnouncement, check_announcement
from kveik.fleet.client import FleetClient
from kveik.fleet.registration import RETRY_S, Look, Registration
from kveik.watchdog.announcing import EngineWatch

EPILOG = """\
Waits until the engine lists its models, announces it, sends heartbeats, and takes it out when it is
stopped (SIGTERM, SIGINT) or when nobody listens at the engine's address any more. Restarts of router
and engine are survived. The token comes from --token-file or KVEIK_ADMISSION_TOKEN, the engine's own
API key from KVEIK_ENGINE_API_KEY.

exit codes:
  0  stopped by a signal, the engine is withdrawn; with --once: it is announced
  2  wrong use: an argument that is not valid, or a router that refuses announcement or token
  3  the engine did not answer within --wait; with --once also: no router took it
"""

_LOOK_S = 5.0

Say = Callable[[str, str], None]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--router", required=True, metavar="URL", help="the router")
    parser.add_argument("--engine", required=True, metavar="URL", help="the engine, as this command reaches it")
    parser.add_argument("--advertise", default="", metavar="URL", help="the engine as the router reaches it (--engine)")
    parser.add_argument("--engine-id", default="", metavar="ID", help="its name in the fleet (host and port)")
    parser.add_argument("--namespace", default="", metavar="HEX", help="its KV namespace (from its metrics)")
    parser.add_argument("--block-tokens", type=int, default=0, metavar="N", help="block size (from its metrics)")
    parser.add_argument("--events", default="", metavar="URL", help="where it publishes KV events, tcp://HOST:PORT")
    parser.add_argument("--replay", default="", metavar="URL", help="where it replays them, tcp://HOST:PORT")
    parser.add_argument("--label", action="append", default=[], metavar="NAME=TEXT", help="a label; may be repeated")
    parser.add_argument(
        "--lease",
        type=float,
        default=LEASE_DEFAULT_S,
        metavar="S",
        help=f"out after so long without a heartbeat ({LEASE_DEFAULT_S:g})",
    )
    parser.add_argument("--token-file", default="", metavar="FILE", help="file with the router's admission token")
    parser.add_argument(
        "--wait", type=float, default=0.0, metavar="S", help="give the engine so long to answer (0: for ever)"
    )
    parser.add_argument("--once", action="store_true", help="announce it without a lease, and end")
    parser.add_argument("--json", action="store_true", help="print each line as a JSON object")


def run(args: argparse.Namespace) -> int:
    """Register until a signal comes."""
    stop = threading.Event()
    before = {number: signal.signal(number, lambda *_: stop.set()) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        return register(args, stop)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def register(args: argparse.Namespace, stop: threading.Event) -> int:
    """Register until ``stop`` is set; the exit code."""
    say = _sayer(as_json=args.json)
    try:
        words = _words(args)
        router = FleetClient(args.router, token=lambda: _token(args.token_file))
        engine = EngineClient(args.engine, read_timeout_s=_LOOK_S, api_key=os.environ.get("KVEIK_ENGINE_API_KEY", ""))
        _check_reach(words.url, router.host)
        _token(args.token_file)  # said now if it cannot be read, not after the engine's start
        watch = EngineWatch(engine, words)
        if not _wait_for_engine(watch, args.wait, stop, say):
            return 0 if stop.is_set() else 3
        if args.once:
            return _announce_once(router, watch, say)
        return _keep(Registration(router, watch.look), stop, say)
    except (ConfigError, FleetError) as error:
        print(f"kveik register: {error}", file=sys.stderr)
        return 2
    except EngineError as error:  # an address that is none
        print(f"kveik register: {error}", file=sys.stderr)
        return 2


def _keep(registration: Registration, stop: threading.Event, say: Say) -> int:
    pause_s = 0.0
    while not stop.wait(pause_s):
        beat = registration.beat()
        if beat.told:
            say("registered" if beat.registered else "waiting", beat.told)
        pause_s = beat.pause_s
    say("ended", registration.end())
    return 0


def _announce_once(router: FleetClient, watch: EngineWatch, say: Say) -> int:
    look, words, why = watch.look()
    if words is None:
        say(look.value, why)
        return 3
    try:
        answer = router.announce(msgspec.structs.replace(words, lease_s=0.0))
    except ConfigError:
        raise
    except FleetError as error:
        print(f"kveik register: {error}", file=sys.stderr)
        return 3
    say("registered", f"engine {words.name} is announced at {router.url} without a lease, state {answer.get('state')}")
    return 0


def _wait_for_engine(watch: EngineWatch, wait_s: float, stop: threading.Event, say: Say) -> bool:
    deadline, told = Deadline.after(wait_s), ""
    while True:
        look, _, why = watch.look()
        if look is Look.ANSWERS:
            return True
        if why != told:
            say("waiting", f"waiting for the engine: {why}")
        told = why
        if wait_s and deadline.passed:
            print(f"kveik register: the engine did not answer within {wait_s:g} s: {why}", file=sys.stderr)
            return False
        if stop.wait(RETRY_S):
            return False


def _words(args: argparse.Namespace) -> EngineAnnouncement:
    """What the arguments say of the engine. Raises :class:`ConfigError`."""
    labels = dict(label.partition("=")[::2] for label in args.label)
    if not all("=" in label for label in args.label):
        raise ConfigError(f"--label is {args.label}, expected NAME=TEXT each")
    if not LEASE_MIN_S <= args.lease <= LEASE_MAX_S:
        raise ConfigError(f"--lease is {args.lease:g}, expected {LEASE_MIN_S:g} to {LEASE_MAX_S:g} s")
    url = args.advertise or args.engine
    return check_announcement(
        EngineAnnouncement(
            url=url if "//" in url else f"http://{url}",
            engine_id=args.engine_id,
            namespace=args.namespace,
            block_tokens=args.block_tokens,
            events=args.events,
            replay=args.replay,
            lease_s=args.lease,
            labels=labels,
        )
    )


def _check_reach(engine_url: str, router_host: str) -> None:
    """An engine on loopback is no good to a router on another machine."""
    near = ("localhost", "127.", "::1")
    engine_host = urlsplit(engine_url).hostname or ""
    if engine_host.startswith((*near, "0.0.0.0")) and not router_host.startswith(near):  # noqa: S104 (not bound to)
        raise ConfigError(f"a router at {router_host} cannot reach {engine_url}; say how it can with --advertise URL")


def _token(file: str) -> str:
    """The token now: it may be replaced while this runs. Raises :class:`ConfigError`."""
    if not file:
        return os.environ.get("KVEIK_ADMISSION_TOKEN", "").strip()
    try:
        return Path(file).read_text(encoding="utf8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read the token in {file}: {error}") from error


def _sayer(*, as_json: bool) -> Say:
    def say(state: str, text: str) -> None:
        print(json.dumps({"state": state, "text": text}) if as_json else text, flush=True)

    return say
