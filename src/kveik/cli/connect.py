"""``kveik connect``: print what an existing vLLM needs to use Kveik."""

import argparse
import json
import shlex
import sys

from kveik.config import rows
from kveik.engine.kv_transfer import PLATFORMS, kv_transfer_argument, kv_transfer_config, required_environment
from kveik.errors import ConfigError


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--platform", choices=PLATFORMS, default="cuda", help="where the engine computes (cuda)")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument(
        "--set",
        metavar="NAME=VALUE",
        action="append",
        default=[],
        help=f"a setting of the connector: {', '.join(row.name for row in rows('connector'))}",
    )


def run(args: argparse.Namespace) -> int:
    """Print the argument and the environment; 2 for an unknown setting or a bad value."""
    try:
        given = dict(_pair(text) for text in args.set)
        argument, config = kv_transfer_argument(given), kv_transfer_config(given)
        environment = required_environment(args.platform)
    except ConfigError as error:
        print(f"kveik connect: {error}", file=sys.stderr)
        return 2
    if args.json:
        print(json.dumps({"kv_transfer_config": config, "environment": environment}, indent=1))
        return 0
    for name, value in environment.items():
        print(f"export {name}={shlex.quote(value)}")
    print(f"vllm serve MODEL --kv-transfer-config {shlex.quote(argument)}")
    return 0


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals:
        raise ConfigError(f"--set {text!r}: expected NAME=VALUE")
    return name, value
