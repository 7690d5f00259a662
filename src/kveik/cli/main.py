"""The ``kveik`` command: finds the module of a command and calls it."""

import argparse
import importlib
import shutil
import sys
import textwrap
from collections.abc import Sequence
from types import ModuleType

import kveik
from kveik.cli.words import sentence

#: Every command, by what it is for, with its line of help. Its module, named after it, has ``add_arguments(parser)``
#: and ``run(args) -> int``. Help stands here, so that showing it loads none of them.
GROUPS: dict[str, dict[str, str]] = {
    "run a fleet": {
        "init": "write a commented kveik.toml that fits this machine and a model",
        "up": "start this node's agent, engines, router and watchdog, or change what differs from the configuration",
        "down": "end this node's parts: watchdog, router, engines and agent, in this order",
        "drain": "let an engine finish its requests and give it no new ones",
        "readmit": "give an engine requests again that was drained, isolated or stopped",
        "roll": "restart or upgrade engines one after the other, without a lost request",
    },
    "see how it is": {
        "status": "show how the fleet is: engines with states and reasons, load, hits, tiers, processes, events",
        "events": "show what happened to a node's parts: starts, isolations, restarts, warnings",
        "logs": "show the last lines of the parts' logs, and follow them",
        "stats": "show what the node's agent holds and has done",
        "breakeven": "show when loading from each tier beats computing, and what the cache saved",
    },
    "find out why": {
        "doctor": "look for what keeps a fleet from being of use, and say what to do",
        "probe": "try on a running engine whether its cache really gives hits, and say where they are lost",
        "explain": (
            "say what the errors in a log mean, why a request found no more in the cache, or what breaks prefixes"
        ),
        "verify": "prove on real engines that a cache hit gives what a cold run gives",
        "bench": (
            "measure what a cache is worth for a workload: cold at its start, on against off in turn, with error bars"
        ),
    },
    "plan": {
        "plan": "say how many tokens and requests fit on which hardware, with the formula of each figure",
        "launch": (
            "write commands that start a model on a kind of hardware with a cache tier, or check a line that you have"
        ),
        "connect": "print the argument and environment that an existing vLLM needs to use Kveik",
    },
    "look after what is stored": {
        "cache": "show what the cache holds for which model, drop a model's blocks, or warm prompts up",
        "fsck": "look whether what lies in a tier is sound; remove what is not, when told to",
        "store": "run a distributed store on this machine, to try it as a tier of the agent",
    },
    "run one part": {
        "agent": "run the node's agent (DRAM tier and the tiers below) in the foreground",
        "router": "run the router, the one address that clients know, in the foreground",
        "watchdog": "look after this node's engines: probe them, isolate sick ones, restart the right one once",
        "register": "keep an engine registered with a router: a sidecar beside the engine",
        "key": "give, list and revoke the API keys that the router asks for",
    },
    "try it": {
        "demo": "start a fleet of two engines, measure cold runs and hits, kill an engine, and stop everything again",
        "sim-engine": "run a simulated engine (computes nothing, says so everywhere) for load and fault tests",
    },
}
COMMANDS = {name: line for group in GROUPS.values() for name, line in group.items()}
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
    args = _parser(given[0] if given and given[0] in COMMANDS else "").parse_args(given)
    try:
        code: int = args.run(args)
    except KeyboardInterrupt:
        return 130
    return code


def module_of(command: str) -> ModuleType:
    """The module of a command, loaded now."""
    return importlib.import_module(f"kveik.cli.{command.replace('-', '_')}")


def _parser(called: str) -> argparse.ArgumentParser:
    """Reads the arguments of the command that is called, whose module alone is loaded: some of them load a lot."""
    names = [called] if called else list(COMMANDS)
    parser = argparse.ArgumentParser(
        prog="kveik",
        usage="kveik [-h] [--version] COMMAND ...",
        description="One shared, verified KV cache under a fleet of vLLM engines.",
        epilog=f"{_listed(names)}\n\n{EPILOG}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kveik {kveik.__version__}")
    commands = parser.add_subparsers(
        metavar="COMMAND", required=True, help="one of those below; each has its own --help"
    )
    for name in names:
        command = commands.add_parser(name, prog=f"kveik {name}", description=sentence(COMMANDS[name]))
        if called:
            module = module_of(called)
            module.add_arguments(command)
            command.set_defaults(run=module.run)
    return parser


def _listed(chosen: Sequence[str]) -> str:
    """Commands by what they are for, each with its one line of help."""
    width = min(shutil.get_terminal_size().columns, 120)
    wrapped = textwrap.TextWrapper(width, subsequent_indent=" " * _NAMES_WIDTH)
    groups: list[str] = []
    for group, commands in GROUPS.items():
        lines = [f"{group}:"]
        for name, line in commands.items():
            if name in chosen:
                wrapped.initial_indent = f"  {name:<{_NAMES_WIDTH - 2}}"
                lines += wrapped.wrap(line)
        groups.append("\n".join(lines))
    return "\n\n".join(groups)


if __name__ == "__main__":
    sys.exit(main())
