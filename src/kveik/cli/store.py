"""``kveik store``: run a distributed store on this machine, to try it."""

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from kveik.byte_size import read_size
from kveik.config import WAIT_MAX_S
from kveik.errors import ConfigError, KveikError

EPILOG = """\
  kveik store mooncake up --memory 4GiB     a Mooncake master, and a process that lends 4 GiB
  kveik store mooncake up --metadata        with its HTTP metadata service, too
  kveik store yuanrong up                   etcd, and a datasystem worker with a quarter of the free memory

It listens on loopback only, proves itself by a block that is put and read back, prints the section to paste into
kveik.toml and how it is done for real, and runs until Ctrl-C, which ends all of it. What it stored is gone then.

exit codes:
  0  stopped by a signal
  2  wrong use, or the store's package is not installed: the message says which
  3  it could not start, or a process of it ended: the message says why
"""

#: Memory that Mooncake is lent unless told otherwise.
_MEMORY = "2GiB"
_LEAST_BYTES = 64 << 20


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("store", choices=sorted(TRIALS), help="which one")
    parser.add_argument("action", choices=["up"], help="start it, and run until Ctrl-C")
    parser.add_argument(
        "--memory", type=_size, metavar="SIZE", help=f"memory to lend ({_MEMORY}; yuanrong: a quarter of what is free)"
    )
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="where logs go (a new folder in the temporary one)")
    parser.add_argument("--patience-s", type=float, default=60.0, metavar="S", help="longest wait for its proof (60)")
    parser.add_argument(
        "--port", type=int, default=0, metavar="PORT", help="of master or worker; the next 3 or 2 are taken, too"
    )
    mooncake = parser.add_argument_group("mooncake")
    mooncake.add_argument("--metadata", action="store_true", help="start the master's HTTP metadata service, too")


def run(args: argparse.Namespace) -> int:
    """Run it until a signal comes."""
    if not 0 < args.patience_s <= WAIT_MAX_S:
        print(f"kveik store: --patience-s is {args.patience_s:g}, expected up to {WAIT_MAX_S:g}", file=sys.stderr)
        return 2
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda received, _: signals.append(received))
    folder = args.logs or Path(tempfile.mkdtemp(prefix=f"kveik-{args.store}-"))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return TRIALS[args.store](args, folder, lambda: bool(signals))
    except ConfigError as error:
        print(f"kveik store: {error}", file=sys.stderr)
        return 2
    except (KveikError, OSError) as error:
        print(f"kveik store: {error}", file=sys.stderr)
        return 3


def _mooncake(args: argparse.Namespace, folder: Path, stopped: Callable[[], bool]) -> int:
    from kveik.launch.mooncake_trial import MASTER_PORT, MooncakeTrial, for_real
    from kveik.launch.store_processes import StoreProcesses, prove
    from kveik.store.mooncake import MooncakeStore
    from kveik.store.mooncake_link import MooncakeLink

    first = args.port or MASTER_PORT
    trial = MooncakeTrial(args.memory or _size(_MEMORY), args.metadata, first, first + 1, first + 2, first + 3)
    processes = trial.processes()
    with StoreProcesses(folder, _say) as running:
        for process in processes:
            running.start(process)
        store = MooncakeStore(MooncakeLink(trial.settings, wait_s=args.patience_s, hang_s=args.patience_s))
        try:
            seconds = prove(store, args.patience_s)
        finally:
            store.close()
        _say(f"a block was put and read back after {seconds:.1f} s. Paste into kveik.toml:\n\n{trial.section()}\n")
        _say("For real:\n" + "\n".join(f"  {line}" for line in for_real()) + "\n")
        _say("Running; Ctrl-C ends it.")
        return _until_stopped(running.watch(stopped))


def _yuanrong(args: argparse.Namespace, folder: Path, stopped: Callable[[], bool]) -> int:
    from kveik.launch.store_processes import StoreProcesses, prove
    from kveik.launch.yuanrong_trial import (
        WORKER_PORT,
        YuanrongTrial,
        etcd_program,
        fitting_memory,
        on_several_nodes,
        section,
    )
    from kveik.store.shared_memory import available_memory_bytes
    from kveik.store.yuanrong_client import YuanrongOptions, require_package
    from kveik.store.yuanrong_tier import open_tier

    package, first = require_package(), args.port or WORKER_PORT
    memory_bytes = args.memory or fitting_memory(available_memory_bytes())
    trial = YuanrongTrial(folder, first, first + 1, first + 2, memory_bytes)
    processes = trial.processes(package, etcd_program(), os.environ)
    trial.clear()
    try:
        with StoreProcesses(folder, _say) as running:
            for process in processes:
                running.start(process)
            store = open_tier(YuanrongOptions.from_settings(trial.settings), readers=1)
            try:
                seconds = prove(store, args.patience_s)
            finally:
                store.close()
            _say(f"a block was put and read back after {seconds:.1f} s. Paste into kveik.toml:\n\n{section(trial)}")
            _say(f"{on_several_nodes(trial)}\n")
            _say("Running; Ctrl-C ends it.")
            return _until_stopped(running.watch(stopped))
    finally:
        trial.clear()


def _until_stopped(ended: str) -> int:
    if ended:
        print(f"kveik store: {ended}", file=sys.stderr)
        return 3
    return 0


def _say(text: str) -> None:
    print(text, flush=True)


def _size(text: str) -> int:
    """Bytes of a size, with or without a unit."""
    try:
        size = read_size(text)
    except (ValueError, OverflowError):
        size = 0
    if size < _LEAST_BYTES:
        raise argparse.ArgumentTypeError(f"{text!r} is no size of at least 64MiB, such as 2GiB")
    return size


#: Each store, and how it is tried.
TRIALS: dict[str, Callable[[argparse.Namespace, Path, Callable[[], bool]], int]] = {
    "mooncake": _mooncake,
    "yuanrong": _yuanrong,
}
