"""The ``kveik`` command: finds the module of a command and calls it."""

import argparse
import importlib
import sys
from collections.abc import Iterable, Sequence
from types import ModuleType

import kveik

#: Every command and its module. A module has ``HELP``, ``add_arguments(parser)`` and ``run(args) -> int``.
COMMANDS = {
    "init": "kveik.cli.init",
    "status": "kveik.cli.status",
    "up": "kveik.cli.up",
    "down": "kveik.cli.down",
    "logs": "kveik.cli.logs",
    "agent": "kveik.cli.agent",
    "router": "kveik.cli.router",
    "stats": "kveik.cli.stats",
    "breakeven": "kveik.cli.breakeven",
    "store": "kveik.cli.store",
    "connect": "kveik.cli.connect",
    "key": "kveik.cli.key",
    "register": "kveik.cli.register",
    "watchdog": "kveik.cli.watchdog",
    "cache": "kveik.cli.cache",
    "fsck": "kveik.cli.fsck",
    "events": "kveik.cli.events",
    "doctor": "kveik.cli.doctor",
    "explain": "kveik.cli.explain",
    "probe": "kveik.cli.probe",
    "drain": "kveik.cli.drain",
    "readmit": "kveik.cli.readmit",
    "roll": "kveik.cli.roll",
    "verify": "kveik.cli.verify",
    "launch": "kveik.cli.launch",
    "plan": "kveik.cli.plan",
    "bench": "kveik.cli.bench",
    "demo": "kveik.cli.demo",
    "sim-engine": "kveik.cli.sim_engine",
}

EPILOG = """\
exit codes:
  0  done, and all is well
  1  done, and the answer is no (for example a proof that does not hold)
  2  wrong use: unknown arguments, or a setting that is not valid
  3  could not be done: the message says why
"""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns its exit code."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    # Only the module of the command that is called is loaded: some of them load a lot.
    named = [given[0]] if given and given[0] in COMMANDS else list(COMMANDS)
    args = _parser(named).parse_args(given)
    try:
        code: int = args.run(args)
    except KeyboardInterrupt:
        return 130
    return code


def _parser(names: Iterable[str]) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="kveik",
        description="One shared, verified KV cache under a fleet of vLLM engines.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kveik {kveik.__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for name in names:
        module: ModuleType = importlib.import_module(COMMANDS[name])
        command = commands.add_parser(name, help=module.HELP, description=_sentence(module.HELP))
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
