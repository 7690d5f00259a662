"""The same workload by ``vllm bench serve``, where vLLM is installed: its command line, and its result.

It draws its own tokens for the same lengths and counts. A cache salt of its own makes its run cold, which a second run
with the same seed otherwise is not, and the request that it sends beforehand to see whether all is well is left out.
"""

import json
import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kveik.bench.planned import Workload
from kveik.errors import ConfigError, EngineError

#: The workload that it has as well.
WORKLOAD = "prefix"
_TAIL_CHARACTERS = 600
#: What ``vllm bench serve`` runs. The command itself asks for the version of a distribution called vllm, which vLLM for
#: CPU is not.
_PROGRAM = (
    "import argparse; from vllm.benchmarks.serve import add_cli_args, main; "
    "parser = argparse.ArgumentParser('vllm bench serve'); add_cli_args(parser); main(parser.parse_args())"
)


@dataclass(frozen=True, slots=True)
class VllmFigures:
    """What ``vllm bench serve`` says. Seconds; TTFT from the real sending."""

    completed: int
    failed: int
    ttft_s: float
    ttft_p90_s: float
    ttft_p99_s: float
    token_s: float
    requests_per_s: float
    answer_tokens_per_s: float
    tokens_per_s: float

    def document(self) -> dict[str, int | float]:
        """As a JSON object."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class VllmServe:
    """How to run it. ``python``: of an environment with vLLM. ``tokenizer``: the model's folder or name."""

    python: str
    tokenizer: str
    url: str
    model: str
    salt: str
    seed: int
    per_s: float = 0.0
    places: int = 0
    api_key: str = field(default="", repr=False)

    def command(self, workload: Workload, folder: str, file: str) -> list[str]:
        """The command line. Raises :class:`ConfigError` for a workload that vLLM does not have."""
        if workload.name != WORKLOAD:
            raise ConfigError(f"vllm bench serve has no workload like {workload.name}, expected {WORKLOAD}")
        made: Mapping[str, Any] = workload.parameters
        command = [self.python, "-c", _PROGRAM]
        flags = {
            "backend": "vllm",
            "base-url": self.url,
            "endpoint": "/v1/completions",
            "model": self.model,
            "tokenizer": self.tokenizer,
            "dataset-name": "prefix_repetition",
            "prefix-repetition-prefix-len": made["prefix_tokens"],
            "prefix-repetition-suffix-len": made["suffix_tokens"],
            "prefix-repetition-num-prefixes": made["prefixes"],
            "prefix-repetition-output-len": made["answer_tokens"],
            "num-prompts": made["requests"],
            "seed": self.seed,
            "temperature": 0,
            "extra-body": json.dumps({"cache_salt": self.salt}),
            "percentile-metrics": "ttft,tpot",
            "metric-percentiles": "50,90,99",
            "ready-check-timeout-sec": 0,
            "result-dir": folder,
            "result-filename": file,
        }
        flags |= {"request-rate": self.per_s} if self.per_s else {}
        flags |= {"max-concurrency": self.places} if self.places else {}
        command += [word for name, value in flags.items() for word in (f"--{name}", str(value))]
        return [*command, "--ignore-eos", "--save-result", "--disable-tqdm"]

    def check(self) -> None:
        """Make sure that vLLM is there, before minutes are spent. Raises :class:`ConfigError`."""
        question = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
        try:
            found = subprocess.run(
                [self.python, "-c", question], check=False, capture_output=True, stdin=subprocess.DEVNULL
            )
        except OSError as error:
            raise ConfigError(f"cannot run {self.python}: {error}; expected a Python that has vLLM") from error
        if found.returncode:
            raise ConfigError(f"{self.python} has no vLLM: give --vllm-python one that has")

    def run(self, workload: Workload) -> VllmFigures:
        """Run it. Raises :class:`EngineError` when it ends with an error or without a result."""
        with tempfile.TemporaryDirectory(prefix="kveik-bench-") as folder:
            command = self.command(workload, folder, "result.json")
            environment = {"HF_HUB_OFFLINE": "1", **os.environ}
            environment |= {"OPENAI_API_KEY": self.api_key} if self.api_key else {}
            try:
                done = subprocess.run(
                    command, check=False, capture_output=True, text=True, stdin=subprocess.DEVNULL, env=environment
                )
            except OSError as error:
                raise EngineError(f"vllm bench serve could not be started with {self.python}: {error}") from error
            if done.returncode:
                raise EngineError(
                    f"vllm bench serve ended with {done.returncode}: {_tail(done.stderr) or _tail(done.stdout)}"
                )
            return read_result(Path(folder) / "result.json")


def _tail(text: str) -> str:
    return text.strip()[-_TAIL_CHARACTERS:]


def read_result(file: Path) -> VllmFigures:
    """The figures in a result of ``vllm bench serve --save-result``. Raises :class:`EngineError`."""
    try:
        result = json.loads(file.read_text(encoding="utf8"))
        return VllmFigures(
            completed=int(result["completed"]),
            failed=int(result.get("failed", 0)),
            ttft_s=result["median_ttft_ms"] / 1000,
            ttft_p90_s=result["p90_ttft_ms"] / 1000,
            ttft_p99_s=result["p99_ttft_ms"] / 1000,
            token_s=result["median_tpot_ms"] / 1000,
            requests_per_s=float(result["request_throughput"]),
            answer_tokens_per_s=float(result["output_throughput"]),
            tokens_per_s=float(result["total_token_throughput"]),
        )
    except (OSError, ValueError, LookupError, TypeError, AttributeError) as error:
        raise EngineError(f"vllm bench serve left no result that is understood here: {error!r}") from error
