"""The ``kveik`` command: finds the module of a command and calls it."""

import argparse
import importlib
import shutil
import sys
import textwrap
from collections.abc import Mapping, Sequence
from types import ModuleType

import kveik

#: Every command, by what it is for, and its module. A module has ``HELP``, ``add_arguments(parser)`` and
#: ``run(args) -> int``.
GROUPS: dict[str, dict[str, str]] = {
    "run a fleet": {
        "init": "kveik.cli.init",
        "up": "kveik.cli.up",
        "down": "kveik.cli.down",
        "drain": "kveik.cli.drain",
        "readmit": "kveik.cli.readmit",
        "roll": "kveik.cli.roll",
    },
    "see how it is": {
        "status": "kveik.cli.status",
        "events": "kveik.cli.events",
        "logs": "kveik.cli.logs",
        "stats": "kveik.cli.stats",
        "breakeven": "kveik.cli.breakeven",
    },
    "find out why": {
        "doctor": "kveik.cli.doctor",
        "probe": "kveik.cli.probe",
        "explain": "kveik.cli.explain",
        "verify": "kveik.cli.verify",
        "bench": "kveik.cli.bench",
    },
    "plan": {
        "plan": "kveik.cli.plan",
        "launch": "kveik.cli.launch",
        "connect": "kveik.cli.connect",
    },
    "look after what is stored": {
        "cache": "kveik.cli.cache",
        "fsck": "kveik.cli.fsck",
        "store": "kveik.cli.store",
    },
    "run one part": {
        "agent": "kveik.cli.agent",
        "router": "kveik.cli.router",
        "watchdog": "kveik.cli.watchdog",
        "register": "kveik.cli.register",
        "key": "kveik.cli.key",
    },
    "try it": {
        "demo": "kveik.cli.demo",
        "sim-engine": "kveik.cli.sim_engine",
    },
}
COMMANDS = {name: module for group in GROUPS.values() for name, module in group.items()}
_NAMES_WIDTH = max(map(len, COMMANDS)) + 4

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


def _parser(names: Sequence[str]) -> argparse.ArgumentParser:
    modules: dict[str, ModuleType] = {name: importlib.import_module(COMMANDS[name]) for name in names}
    parser = argparse.ArgumentParser(
        prog="kveik",
        usage="kveik [-h] [--version] COMMAND ...",
        description="One shared, verified KV cache under a fleet of vLLM engines.",
        epilog=f"{_listed(modules)}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kveik {kveik.__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, help="one of those below; each has its own --help"
    )
    for name, module in modules.items():
        command = commands.add_parser(name, prog=f"kveik {name}", description=_sentence(module.HELP))
        module.add_arguments(command)
        command.set_defaults(run=module.run)
    return parser


def _listed(modules: Mapping[str, ModuleType]) -> str:
    """Commands by what they are for, each with its one line of help."""
    width = min(shutil.get_terminal_size().columns, 120)
    wrapped = textwrap.TextWrapper(width, subsequent_indent=" " * _NAMES_WIDTH)
    groups: list[str] = []
    for group, names in GROUPS.items():
        lines = [f"{group}:"]
        for name in [name for name in names if name in modules]:
            wrapped.initial_indent = f"  {name:<{_NAMES_WIDTH - 2}}"
            lines += wrapped.wrap(modules[name].HELP)
        groups.append("\n".join(lines))
    return "\n\n".join(groups)


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


if __name__ == "__main__":
    sys.exit(main())
