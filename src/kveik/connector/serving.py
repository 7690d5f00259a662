"""What ``vllm serve`` runs (``vllm/entrypoints/cli/serve.py``, 0.32). Started by :mod:`kveik.connector.serve`."""

from vllm.entrypoints.cli.serve import ServeSubcommand
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.entrypoints.serve.utils.api_utils import cli_env_setup
from vllm.logger import configure_logging_from_args
from vllm.utils.argparse_utils import FlexibleArgumentParser


def main() -> None:
    """Serve as the arguments say, until a signal."""
    cli_env_setup()
    command = ServeSubcommand()
    args = make_arg_parser(FlexibleArgumentParser(prog="vllm serve")).parse_args()
    configure_logging_from_args(args)
    command.validate(args)
    command.cmd(args)
