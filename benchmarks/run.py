"""Run benchmarks one after another, each in its own process, and write the page: ``make bench``.

Results go to ``benchmarks/results``, pictures to ``docs/images``. Name some benchmarks to run only
those; the page is made of all results that are there.
"""

import argparse
import json
import subprocess
import sys
import time

import msgspec

from benchmarks import document
from benchmarks.document import AGENT_PATH, IMAGES, RESULTS
from benchmarks.machine import ROOT, ForeignLoad, describe, run_reaping
from benchmarks.options import now

VLLM = str(ROOT / ".venv-vllm" / "bin" / "python")
LMCACHE = str(ROOT / ".venv-lmcache" / "bin" / "python")

#: Name of the result: module, interpreter of the engines, further options.
BENCHMARKS = {
    "ttft-bfloat16": ("ttft", VLLM, ["--dtype", "bfloat16"]),
    "ttft-float32": ("ttft", VLLM, ["--dtype", "float32"]),
    "against-lmcache": ("against_lmcache", LMCACHE, []),
    "store-tiers": ("store_tiers", VLLM, []),
    "stores-against-lmcache": ("stores_against_lmcache", LMCACHE, []),
    "overhead": ("overhead", VLLM, []),
    "startup": ("startup", VLLM, []),
    "fleet-start": ("fleet_start", VLLM, []),
    "fleet-faults": ("fleet_faults", VLLM, []),
    "load-or-compute": ("load_or_compute", VLLM, []),
    "router-speed": ("router_speed", sys.executable, []),
    "router-failures": ("router_failures", sys.executable, []),
    "router-quality": ("router_quality", sys.executable, []),
    "fleet-roll": ("fleet_roll", VLLM, []),
}


def main() -> int:
    """Run what was named; 1 when one could not be measured. A claim that does not hold is no error."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all without any")
    given, options = parser.parse_known_args()
    known = [*BENCHMARKS, AGENT_PATH]
    names = given.names or known
    if unknown := [name for name in names if name not in known]:
        parser.error(f"unknown benchmark {unknown[0]}; known are {', '.join(known)}")
    failed = [name for name in names if not (run_agent_path() if name == AGENT_PATH else run(name, options))]
    document.main()
    if failed:
        print(f"could not be measured: {', '.join(failed)}")
    return 1 if failed else 0


def run(name: str, options: list[str]) -> bool:
    """One benchmark; ``options`` are passed on to it. Whether it could be measured."""
    module, python, own_options = BENCHMARKS[name]
    command = [sys.executable, "-m", f"benchmarks.{module}", "--engine-python", python, *own_options]
    command += ["--json", str(RESULTS / f"{name}.json"), "--plot", str(IMAGES / f"benchmark-{name}.png"), *options]
    print(f"--- {name}", flush=True)
    started_s = time.monotonic()
    code = run_reaping(command, ROOT)
    print(f"--- {name} took {time.monotonic() - started_s:.0f} s", flush=True)
    return code == 0


def run_agent_path() -> bool:
    """The agent's data path, which needs no engine. Whether it could be measured."""
    print(f"--- {AGENT_PATH}", flush=True)
    command = [sys.executable, "-m", "benchmarks.agent_path", "--json", "--rounds", "60"]
    load = ForeignLoad()
    output = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True).stdout
    foreign_cores = round(load.cores(), 3)
    print(output)
    if not output.startswith("{"):
        return False
    where = {
        "machine": msgspec.to_builtins(describe(sys.executable)),
        "finished": now(),
        "foreign_cores": foreign_cores,
    }
    text = json.dumps({**json.loads(output), **where}, indent=1)
    (RESULTS / f"{AGENT_PATH}.json").write_text(f"{text}\n", encoding="utf8")
    return True


if __name__ == "__main__":
    sys.exit(main())
