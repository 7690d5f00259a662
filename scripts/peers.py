"""Install the routers that ``benchmarks/router_speed.py`` compares with: ``peers.py`` or ``peers.py NAME ...``.

Each goes into a virtual environment of its own below ``.kveik/peers``, at the version with which the
results in the repository were measured. They are not needed for anything else; what cannot be
installed here is left out, and so by the benchmarks.
"""

import argparse
import subprocess
import sys
import venv
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".kveik" / "peers"
PEERS = {"vllm-router": "0.1.17", "sglang-router": "0.3.2", "smg": "1.13.0"}


def main() -> int:
    """Install what was named; 1 if something could not be."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(PEERS)}; all without any")
    names = parser.parse_args().names or list(PEERS)
    if unknown := [name for name in names if name not in PEERS]:
        parser.error(f"unknown peer {unknown[0]}; known are {', '.join(PEERS)}")
    failed = [name for name in names if not install(name)]
    return 1 if failed else 0


def install(name: str) -> bool:
    """One peer. Whether it is there afterwards; an environment that is complete is left alone."""
    path = FOLDER / name
    stamp = path / "version.stamp"
    wanted = f"{PEERS[name]} {sys.version}"
    if stamp.exists() and stamp.read_text(encoding="utf8") == wanted:
        print(f"{name} {PEERS[name]} is installed", flush=True)
        return True
    print(f"{name} {PEERS[name]}: installing", flush=True)
    venv.create(path, with_pip=True, clear=True, symlinks=True)
    pip = [str(path / "bin" / "python"), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-input"]
    done = subprocess.run([*pip, f"{name}=={PEERS[name]}"], capture_output=True, text=True, check=False)
    if done.returncode:
        print(f"{name} {PEERS[name]} cannot be installed here:\n{done.stderr.strip()[-2000:]}", flush=True)
        return False
    stamp.write_text(wanted, encoding="utf8")
    return True


if __name__ == "__main__":
    sys.exit(main())
