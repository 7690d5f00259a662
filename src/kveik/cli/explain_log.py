"""``kveik explain log``: what the errors in a log mean, and what to do about them."""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, sleep
from typing import BinaryIO

from kveik.doctor.log_dictionary import Dictionary, read_entries
from kveik.doctor.log_file import GrowingLog, lines_of
from kveik.doctor.log_ranking import rank
from kveik.doctor.log_report import is_worth_telling, text_of, told, values_of
from kveik.doctor.log_scan import LogScan

HELP = "say what the errors in a log mean, which came first, and what to do"

EPILOG = """\
  kveik explain log engine.log            what went wrong in it, likely causes first
  docker logs engine 2>&1 | kveik explain log -
  kveik explain log engine.log --follow   what goes wrong, as it comes, until Ctrl-C

It knows lines of vLLM, vllm-ascend, CANN, HCCL, Mooncake, MemCache, UCM, etcd, openYuanrong, LMCache and Kveik. Equal
lines are shown once, with their number. Faults that it does not know are shown as unknown.

exit codes:
  0  nothing found, or notes only
  1  found: known faults or warnings, or faults that are not known
  2  wrong use
  3  the log could not be read
"""

NOTHING, FOUND, WRONG_USE, NOT_READ = 0, 1, 2, 3
_POLL_S = 0.3
#: Looks without news after which a message that began counts as whole.
_QUIET_POLLS = 3
_PIPE = "-"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("file", nargs="?", default=_PIPE, metavar="FILE", help="the log; - or nothing: standard input")
    parser.add_argument("--follow", "-f", action="store_true", help="go on with what comes, until Ctrl-C")
    parser.add_argument("--json", action="store_true", help="print one JSON document")


def run(args: argparse.Namespace) -> int:
    """Read, explain, and say by the exit code what came of it."""
    if args.follow and args.json:
        print("kveik explain log: --follow and --json do not go together", file=sys.stderr)
        return WRONG_USE
    try:
        return _explain(args)
    except BrokenPipeError:
        sys.stderr.close()  # whoever read our words has gone
        return NOTHING
    except OSError as error:
        print(f"kveik explain log: cannot read {args.file}: {error.strerror or error}", file=sys.stderr)
        return NOT_READ


def _explain(args: argparse.Namespace) -> int:
    scan = LogScan(Dictionary(read_entries()))
    if args.follow:
        return _follow(scan, args.file)
    if args.file == _PIPE:
        _read(scan, lines_of(sys.stdin.buffer))
    else:
        with Path(args.file).open("rb") as file:
            _read(scan, _with_progress(lines_of(file), file, Path(args.file).stat().st_size))
    ranked = rank(scan)
    name = "standard input" if args.file == _PIPE else args.file
    if args.json:
        print(json.dumps(values_of(name, scan, ranked), ensure_ascii=False))
    else:
        print("\n".join(text_of(name, scan, ranked)))
    return FOUND if ranked.has_trouble else NOTHING


def _read(scan: LogScan, lines: Iterator[str]) -> None:
    for line in lines:
        scan.feed(line)
    scan.settle()


def _with_progress(lines: Iterator[str], file: BinaryIO, size: int) -> Iterator[str]:
    """The same lines; on a terminal, says once a second how far a long log is read."""
    shown = sys.stderr.isatty()
    next_s = monotonic() + 1.0
    for number, line in enumerate(lines):
        if shown and number % 1000 == 0 and monotonic() >= next_s:
            next_s = monotonic() + 1.0
            print(f"\r{file.tell() * 100 // max(size, 1):3d} % read", end="", file=sys.stderr, flush=True)
        yield line
    if shown:
        print("\r", end="", file=sys.stderr)


def _follow(scan: LogScan, file: str) -> int:
    """Tell of each thing when it is first seen and at each power of ten, until Ctrl-C or the end of a pipe."""
    try:
        if file == _PIPE:
            for line in iter(sys.stdin.buffer.readline, b""):
                _tell(scan, line.decode("utf8", "replace"))
        else:
            _follow_file(scan, GrowingLog(Path(file)))
    except KeyboardInterrupt:
        pass
    _tell(scan, None)
    return FOUND if rank(scan).has_trouble else NOTHING


def _follow_file(scan: LogScan, log: GrowingLog) -> None:
    quiet = 0
    while True:
        quiet += 1
        for line in log.news():
            quiet = 0
            _tell(scan, line)
        if quiet == _QUIET_POLLS:
            _tell(scan, None)
        sleep(_POLL_S)


def _tell(scan: LogScan, line: str | None) -> None:
    for group in scan.settle() if line is None else scan.feed(line):
        if is_worth_telling(group):
            print(told(group), flush=True)
