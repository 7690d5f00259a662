"""Make ``.kveik/compiled``: Kveik with what a request passes in the router compiled, from this working tree.

It is the wheel that ``HATCH_BUILD_HOOK_ENABLE_MYPYC=1 pip wheel .`` makes, unpacked, so what is tested and
measured here is what an installation gets. Put the folder first on ``PYTHONPATH`` to use it. A second run takes a
moment if nothing changed. Needs a C compiler and Python's headers; only the standard library.
"""

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COMPILED = ROOT / ".kveik" / "compiled"
STAMP = "made-from"
#: What the wheel is made of.
PARTS = ("src", "pyproject.toml", "README.md", "LICENSE")
ENABLE = "HATCH_BUILD_HOOK_ENABLE_MYPYC"


def main() -> int:
    """Bring it up to date."""
    COMPILED.parent.mkdir(exist_ok=True)
    with (COMPILED.parent / "compiled.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        wanted = digest()
        stamp = COMPILED / STAMP
        if stamp.exists() and stamp.read_text(encoding="utf8") == wanted:
            return 0
        if not any(map(shutil.which, ("cc", "gcc", "clang"))):
            print("compiled router: there is no C compiler (cc, gcc or clang); on Debian: apt install gcc libc6-dev")
            return 1
        return make(wanted)


def digest() -> str:
    """What the working tree is made of, and the interpreter that it is compiled for."""
    found = hashlib.sha256(sys.version.encode())
    files = [ROOT / "pyproject.toml", *sorted((ROOT / "src").rglob("*"))]
    for file in files:
        if file.is_file() and "__pycache__" not in file.parts:
            found.update(f"{file.relative_to(ROOT)}\0{file.stat().st_size}\0".encode())
            found.update(file.read_bytes())
    return found.hexdigest()


def make(wanted: str) -> int:
    """Compile a copy, since the compiler leaves its files beside the sources."""
    print("compiled router: compiling, about two minutes", flush=True)
    with tempfile.TemporaryDirectory(prefix="kveik-compiled-") as name:
        tree, wheels, fresh = Path(name, "tree"), Path(name, "wheels"), Path(name, "compiled")
        tree.mkdir()
        for part in PARTS:
            if (ROOT / part).is_dir():
                shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                shutil.copy2(ROOT / part, tree / part)
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
        environment = {**os.environ, ENABLE: "1"}
        done = subprocess.run(
            [*pip, "wheel", "--no-deps", "-w", str(wheels), str(tree)], env=environment, check=False
        ).returncode
        if done:
            print(f"compiled router: pip wheel ended with {done}; what it said is above")
            return 1
        (wheel,) = wheels.glob("kveik-*.whl")
        subprocess.run([*pip, "install", "--no-deps", "--target", str(fresh), str(wheel)], check=True)
        (fresh / STAMP).write_text(wanted, encoding="utf8")
        shutil.rmtree(COMPILED, ignore_errors=True)
        shutil.move(fresh, COMPILED)
    print(f"compiled router: made {COMPILED.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
