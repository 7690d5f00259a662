"""Make the models that tests, benchmarks and the demo use.

Run by the environment that has vLLM::

    .venv-vllm/bin/python scripts/prepare_models.py            # all of them
    .venv-vllm/bin/python scripts/prepare_models.py smollm2-135m-instruct tiny-qwen3

They go to ``$KVEIK_MODELS``, by default ``.kveik/models``. A model that is there already is kept.
Each is built in a folder beside its place and renamed when whole, so an interrupted run leaves
nothing half-made under a model's name.
"""

import argparse
import json
import os
import shutil
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from transformers.utils import logging as transformers_logging

from gguf_models import GGUF_MODELS, convert
from random_models import RANDOM_MODELS, make

RECIPE = 1
"""Raise it when a change of these scripts changes what they make: models are then made anew."""
RECIPE_FILE = "kveik-recipe.json"
BUILDERS = {name: partial(convert, model) for name, model in GGUF_MODELS.items()} | {
    name: partial(make, model) for name, model in RANDOM_MODELS.items()
}


def main() -> int:
    """Parse the names, make what is missing, say where it is."""
    parser = argparse.ArgumentParser(description="Make the models that tests, benchmarks and the demo use.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"default: all of {', '.join(BUILDERS)}")
    names = parser.parse_args().names or list(BUILDERS)
    if unknown := sorted(set(names) - BUILDERS.keys()):
        parser.error(f"unknown model {unknown[0]}; known are {', '.join(BUILDERS)}")
    models = Path(os.environ.get("KVEIK_MODELS") or Path(__file__).resolve().parents[1] / ".kveik" / "models")
    transformers_logging.disable_progress_bar()
    models.mkdir(parents=True, exist_ok=True)
    for name in names:
        prepare(name, models / name)
    return 0


def prepare(name: str, target: Path) -> None:
    """Make one model, unless ``target`` holds it as the present recipe makes it."""
    if _recipe_of(target) == RECIPE:
        say(name, f"is at {target}")
        return
    started = time.monotonic()
    building = Path(tempfile.mkdtemp(prefix=f".{name}.", dir=target.parent))
    try:
        BUILDERS[name](building, partial(say, name))
        (building / RECIPE_FILE).write_text(json.dumps({"recipe": RECIPE}) + "\n", encoding="utf8")
        _make_readable(building)
        if target.exists():
            shutil.rmtree(target)
        building.rename(target)
    finally:
        shutil.rmtree(building, ignore_errors=True)
    size = sum(file.stat().st_size for file in target.iterdir())
    say(name, f"made in {time.monotonic() - started:.0f} s, {size / 1e6:.0f} MB, at {target}")


def _make_readable(folder: Path) -> None:
    """Undo the owner-only modes of temporary folders and saved weights."""
    folder.chmod(0o755)
    for file in folder.iterdir():
        file.chmod(0o644)


def say(name: str, progress: str) -> None:
    """One line of progress."""
    print(f"model {name}: {progress}", flush=True)


def _recipe_of(folder: Path) -> int | None:
    try:
        recipe = json.loads((folder / RECIPE_FILE).read_text(encoding="utf8"))["recipe"]
    except FileNotFoundError:
        return None
    return int(recipe)


if __name__ == "__main__":
    sys.exit(main())
