"""``kveik init``: write a configuration file that fits this machine and a model."""

import argparse
import importlib.util
import os
import sys
from pathlib import Path

from kveik.errors import ConfigError
from kveik.launch.init_file import init_text
from kveik.launch.machine import look
from kveik.launch.model_facts import read_model
from kveik.launch.sizes import fitting

EPILOG = """\
Looks at cores, memory and NUMA nodes, at CUDA devices (nvidia-smi or /dev/nvidia*) and Ascend devices
(npu-smi or /dev/davinci*), and at the model's folder, and writes how many engines make sense, what each
computes on, and how much memory goes to what. The engines' Python is the one that runs this command if it
has vLLM, or else KVEIK_ENGINE_PYTHON.

exit codes:
  0  written
  2  wrong use: the folder holds no model, or what is asked for does not fit
  3  could not be done: the file is there already (--force replaces it), or cannot be written
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = EPILOG
    parser.add_argument("--model", type=Path, metavar="DIR", help="the model's folder (left open in the file)")
    parser.add_argument(
        "-o", "--output", type=Path, default=Path("kveik.toml"), metavar="FILE", help="what to write (kveik.toml)"
    )
    parser.add_argument("--engines", type=int, default=0, metavar="N", help="engines to start (as many as make sense)")
    parser.add_argument("--python", default="", metavar="PATH", help="a Python that has vLLM and Kveik")
    parser.add_argument("--force", action="store_true", help="replace the file if it is there")


def run(args: argparse.Namespace) -> int:
    """Look, write, and say what comes next."""
    try:
        machine = look()
        folder = args.model.resolve() if args.model else None
        model = read_model(folder) if folder else None
        sizes = fitting(machine, model, args.engines)
    except ConfigError as error:
        print(f"kveik init: {error}", file=sys.stderr)
        return 2
    python = args.python or _engine_python()
    text = init_text(machine, folder, model, sizes, python)
    try:
        with args.output.open("w" if args.force else "x", encoding="utf8") as file:
            file.write(text)
    except FileExistsError:
        print(f"kveik init: {args.output} is there already; --force replaces it", file=sys.stderr)
        return 3
    except OSError as error:
        print(f"kveik init: cannot write {args.output}: {error.strerror}", file=sys.stderr)
        return 3
    print(f"found    {machine}")
    for note in machine.notes:
        print(f"note     {note}")
    print(f"engines  {len(sizes.engines)}: {sizes.why['engines']}")
    print(f"written  {args.output}")
    if not python and importlib.util.find_spec("vllm") is None:
        print("missing  this Python has no vLLM: set engine.python to one that has, or KVEIK_ENGINE_PYTHON")
    if folder is None:
        print("missing  set engine.model to the folder of a model")
    print(f"next     kveik up{'' if args.output == Path('kveik.toml') else f' --config {args.output}'}")
    return 0


def _engine_python() -> str:
    """Empty where the Python that runs this will do."""
    if importlib.util.find_spec("vllm") is not None:
        return ""
    return os.environ.get("KVEIK_ENGINE_PYTHON", "")
