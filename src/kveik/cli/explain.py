"""``kveik explain``: what something means, or why it happened, and what to do about it."""

import argparse
from types import ModuleType

from kveik.cli import explain_log, explain_prefixes, explain_request
from kveik.cli.words import sentence

EPILOG = """\
Each of them has its own --help:

  kveik explain log [FILE] [--follow] [--json]
  kveik explain request ID | --last N [--config FILE] [--node NAME] [--router URL] [--token-file FILE] [--socket PATH]
  kveik explain prefixes [--top N] [--config FILE] [--node NAME] [--router URL] [--token-file FILE] [--json]

exit codes:
  0  explained; log: nothing found, or notes only; prefixes: nothing breaks them
  1  log: faults or warnings were found; request: no such request is remembered; prefixes: something breaks them
  2  wrong use
  3  what was to be explained could not be had
"""

#: What can be explained, and the module for it, which is made as a command's is.
EXPLAINERS: dict[str, ModuleType] = {
    "log": explain_log,
    "request": explain_request,
    "prefixes": explain_prefixes,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare what can be explained."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    commands = parser.add_subparsers(title="what", metavar="WHAT", required=True)
    for name, module in EXPLAINERS.items():
        command = commands.add_parser(name, help=module.HELP, description=sentence(module.HELP))
        module.add_arguments(command)
        command.set_defaults(explain=module.run)


def run(args: argparse.Namespace) -> int:
    """Explain it."""
    code: int = args.explain(args)
    return code
