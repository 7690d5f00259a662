"""``kveik doctor``: why a fleet runs and yet is of no use."""

import argparse
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kveik.errors import ConfigError, DoctorError

if TYPE_CHECKING:
    from kveik.doctor.check import Context
    from kveik.doctor.running import Answer

HELP = "look for what keeps a fleet from being of use, and say what to do"

EPILOG = """\
  kveik doctor                                    all checks
  kveik doctor --list                             which there are
  kveik doctor versions --python /venv/bin/python whether the engines' packages go together, and were not patched
  pip freeze | kveik doctor versions --from -     the same of a list; the name of an image will do, too
  kveik doctor environment --pid 1234             what the variables of a running engine do
  kveik doctor environment --from engine.env      the same of lines NAME=VALUE

Nothing is changed. Each check has a time limit. What cannot be known is called unknown.

exit codes:
  0  nothing is wrong, as far as can be known
  1  something is wrong: the report says what to do
  2  wrong use: no such check, or --from does not go with what was asked
  3  a check could not be carried out
"""

WELL, WRONG, WRONG_USE, NOT_DONE = 0, 1, 2, 3
_ASCEND = "/usr/local/Ascend"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("check", nargs="*", metavar="CHECK", help="which checks (all)")
    parser.add_argument("--group", default="", metavar="GROUP", help="only the checks of a group")
    parser.add_argument("--list", action="store_true", help="say which checks there are, and end")
    parser.add_argument("--python", default=sys.executable, metavar="PATH", help="the engines' interpreter (this one)")
    parser.add_argument(
        "--from", dest="source", metavar="FILE", help="read a list instead of looking here; -: from a pipe"
    )
    parser.add_argument("--pid", type=int, default=0, metavar="PID", help="look at the environment of this process")
    parser.add_argument("--ascend", type=Path, default=Path(_ASCEND), metavar="DIR", help=f"where CANN is ({_ASCEND})")
    parser.add_argument("--json", action="store_true", help="print the answers as one JSON list")


def run(args: argparse.Namespace) -> int:
    """Ask, print, and say by the exit code what came of it."""
    try:
        from kveik.doctor.checks import chosen_checks
        from kveik.doctor.running import run_checks
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "packaging":
            raise
        print("kveik doctor: the package `packaging` is missing: pip install 'kveik[doctor]'", file=sys.stderr)
        return NOT_DONE
    try:
        checks = chosen_checks(args.check, args.group)
        if args.source and len(checks) > 1:
            raise ConfigError("--from says something to one check: name it")
        context = _context(args)
    except ConfigError as error:
        print(f"kveik doctor: {error}", file=sys.stderr)
        return WRONG_USE
    except DoctorError as error:
        print(f"kveik doctor: {error}", file=sys.stderr)
        return NOT_DONE
    if args.list:
        width = max(len(check.name) for check in checks)
        print("\n".join(f"{check.name:<{width}}  {check.group}: {check.question}" for check in checks))
        return WELL
    answers = []
    for answer in run_checks(checks, context):
        answers.append(answer)
        if not args.json:
            _show(answer)
    if args.json:
        from kveik.doctor.check_report import values_of

        print(json.dumps(values_of(answers), ensure_ascii=False))
    return _code(answers)


def _context(args: argparse.Namespace) -> "Context":
    from kveik.doctor.check import Context

    return Context(args.python, os.environ, _pasted(args.source), args.pid, args.ascend)


def _pasted(source: str | None) -> str | None:
    if not source:
        return None
    try:
        return sys.stdin.read() if source == "-" else Path(source).read_text(encoding="utf8", errors="replace")
    except OSError as error:
        raise DoctorError(f"cannot read {source}: {error.strerror or error}") from error


def _show(answer: "Answer") -> None:
    from kveik.doctor.check_report import text_of

    print("\n".join(text_of(answer)), flush=True)


def _code(answers: "list[Answer]") -> int:
    outcomes = {answer.verdict.outcome.value for answer in answers}
    return WRONG if "wrong" in outcomes else NOT_DONE if "not done" in outcomes else WELL
