"""A node with two real engines under ``kveik up``, and commands over it."""

import json
import os
import subprocess
import sys
import urllib.request
from pathlib import Path
from typing import Any

from kveik.engine.process import free_port
from kveik.launch.up import Launch

MODEL = "smollm2-135m-instruct"
TEXT = """
[fleet]
name = "{name}"
state_folder = "{folder}/s"
drain_s = 10

[engine]
model = "{model}"
python = "{python}"
dtype = "float32"
max_model_tokens = 1024
kv_cache_bytes = "192 MiB"
mode = "eager"
arguments = "--max-num-seqs 4"

[agent]
arena_bytes = "256 MiB"

[router]
port = {router}
drain_s = 5
first_byte_s = 60

[[launch]]
name = "a"
port = {first}

[[launch]]
name = "b"
port = {second}
"""


class Node:
    """A node with two real engines in the background, and commands over it."""

    def __init__(self, folder: Path, model: Path, python: str) -> None:
        self.config = folder / "kveik.toml"
        self.name = f"up-{os.getpid()}"
        router, first, second = (free_port() for _ in range(3))
        self.url = f"http://127.0.0.1:{router}"
        text = TEXT.format(
            name=self.name,
            folder=folder,
            model=model,
            python=python,
            router=router,
            first=first,
            second=second,
        )
        self.config.write_text(text)
        self.started = ""

    @property
    def launch(self) -> Launch:
        return Launch.read(self.config, "", os.environ)

    def run(self, *words: str) -> str:
        """A command that must succeed; what it said."""
        command = [sys.executable, "-m", "kveik.cli.main", words[0], "--config", str(self.config), *words[1:]]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{done.stdout}\n{done.stderr}\n{self.logs()}"
        return done.stdout

    def pids(self) -> dict[str, int]:
        return {view.name: view.pid for view in self.launch.control.status().processes}

    def ask(self) -> dict[str, Any]:
        body = json.dumps({"model": MODEL, "prompt": "The capital of France is", "max_tokens": 4, "temperature": 0})
        request = urllib.request.Request(
            f"{self.url}/v1/completions", body.encode(), {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=300) as answer:
            document: dict[str, Any] = json.load(answer)
        return document

    def logs(self) -> str:
        logs = sorted(self.launch.folder.logs.glob("*.log"))
        return "\n".join(f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in logs)
