"""What the installed vLLM takes: options of ``vllm serve``, variables, connectors; and what it says to a line.

Run as a script by the Python that has vLLM, which need not have Kveik: it reads ``{"argv": [...]}`` from stdin and
writes one JSON document. So it imports nothing of Kveik.
"""

import argparse
import json
import sys
from collections.abc import Sequence
from typing import Any

import vllm
from vllm import envs
from vllm.distributed.kv_transfer.kv_connector.factory import KVConnectorFactory
from vllm.utils.argparse_utils import FlexibleArgumentParser

try:
    from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
except ImportError:  # before 0.32
    from vllm.entrypoints.openai.cli_args import make_arg_parser, validate_parsed_serve_args


def parser() -> Any:
    """The parser of ``vllm serve``, which raises :class:`ValueError` instead of leaving the process."""
    made = make_arg_parser(FlexibleArgumentParser(prog="vllm serve", exit_on_error=False))

    def refuse(message: str) -> None:
        raise ValueError(message)

    made.error = refuse
    return made


def known(made: Any) -> dict[str, Any]:
    """All that this vLLM knows, by name and in order."""
    return {
        "version": vllm.__version__.partition("+")[0],
        "options": dict(sorted(_options(made).items())),
        "environment": sorted(envs.environment_variables),
        "connectors": sorted(KVConnectorFactory._registry),
    }


def _options(made: Any) -> dict[str, dict[str, Any]]:
    """For each spelling how many values it takes (argparse's ``nargs``; 0: none, 1: one), and which ones."""
    found: dict[str, dict[str, Any]] = {}
    for action in made._actions:
        takes = action.nargs if action.nargs is not None else 1
        row: dict[str, Any] = {"takes": takes, "dest": action.dest}
        if action.choices:
            row["choices"] = [str(choice) for choice in action.choices]
        for name in action.option_strings:
            found[name] = row
    return found


def refusal(made: Any, argv: Sequence[str]) -> str:
    """What the parser says against a line; empty if it takes it."""
    try:
        args = made.parse_args(list(argv))
        args.model, args.subparser, args.dispatch_function = args.model_tag or args.model, "serve", None
        validate_parsed_serve_args(args)
    except (ValueError, TypeError, KeyError, argparse.ArgumentError, SystemExit) as error:
        return f"{error}" or type(error).__name__
    return ""


if __name__ == "__main__":
    asked = json.load(sys.stdin)
    the_parser = parser()
    answer = known(the_parser) | {"refusal": refusal(the_parser, asked["argv"]) if asked.get("argv") else ""}
    sys.stdout.write(json.dumps(answer))
