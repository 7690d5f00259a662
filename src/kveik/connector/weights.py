"""The digest of a model's weights.

It is made by content: a renamed folder is the same model, other weights under the same name never are.

Reading a large checkpoint takes a while even from the page cache, so the digest of each file is
remembered under its identity (device, inode, size, modification and change time). A file that was
changed in any way gets a new identity and is read again.
"""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import xxhash

from kveik.errors import KveikError

#: File names that hold weights, in the order in which loaders prefer them.
WEIGHT_PATTERNS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.npz")
_CHUNK_BYTES = 16 << 20
_SAMPLES = 64
_SAMPLE_BYTES = 1 << 20
Progress = Callable[[int, int], None]


def weight_files(model: Path) -> list[Path]:
    """The files that hold the weights of a model folder, or the model file itself.

    Raises :class:`KveikError` when there are none.
    """
    if model.is_file():
        return [model]
    for pattern in WEIGHT_PATTERNS:
        files = sorted(path for path in model.rglob(pattern) if path.is_file())
        if files:
            return files
    raise KveikError(f"no weight files ({', '.join(WEIGHT_PATTERNS)}) below {model}")


def weights_digest(
    model: Path, *, sampled: bool = False, cache: Path | None = None, progress: Progress | None = None
) -> str:
    """Hex digest over the content of all weight files, in the order of their relative names.

    ``sampled`` reads 64 pieces of 1 MiB of each file instead of every byte: quick on huge checkpoints,
    blind to a change between the samples. ``cache`` is a JSON file of known digests;
    ``progress`` gets (bytes done, bytes in all). Raises :class:`KveikError` or :class:`OSError`.
    """
    files = weight_files(model)
    known = _read_cache(cache)
    total, done = sum(path.stat().st_size for path in files), 0
    digests = {}
    with ThreadPoolExecutor(max_workers=min(4, len(files)), thread_name_prefix="kveik-digest") as pool:
        work = {path: pool.submit(_file_digest, path, sampled, known) for path in files}
        for path, future in work.items():
            identity, digests[path] = future.result()
            known[identity] = digests[path]
            done += path.stat().st_size
            if progress is not None:
                progress(done, total)
    _write_cache(cache, known)
    combined = hashlib.sha256()
    for path in files:
        name = path.name if path == model else path.relative_to(model).as_posix()
        combined.update(f"{name if len(files) > 1 else ''}\0{digests[path]}\n".encode())
    return ("sampled-" if sampled else "") + combined.hexdigest()[:32]


def _file_digest(path: Path, sampled: bool, known: dict[str, str]) -> tuple[str, str]:
    stat = path.stat()
    identity = f"{stat.st_dev}:{stat.st_ino}:{stat.st_size}:{stat.st_mtime_ns}:{stat.st_ctime_ns}:{int(sampled)}"
    if identity in known:
        return identity, known[identity]
    digest = xxhash.xxh3_128(str(stat.st_size).encode())
    buffer = bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        for offset, length in _pieces(stat.st_size, sampled):
            file.seek(offset)
            view = memoryview(buffer)[:length]
            got = file.readinto(view)
            if got != length:
                raise KveikError(f"{path} changed while its digest was made")
            digest.update(view)
    return identity, digest.hexdigest()


def _pieces(size: int, sampled: bool) -> Iterator[tuple[int, int]]:
    if sampled and size > _SAMPLES * _SAMPLE_BYTES:
        for sample in range(_SAMPLES):
            yield (size - _SAMPLE_BYTES) * sample // (_SAMPLES - 1), _SAMPLE_BYTES
        return
    for offset in range(0, size, _CHUNK_BYTES):
        yield offset, min(_CHUNK_BYTES, size - offset)


def default_cache() -> Path:
    """``$XDG_CACHE_HOME/kveik/weights.json`` or the same below ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    return Path(base) / "kveik" / "weights.json"


def _read_cache(cache: Path | None) -> dict[str, str]:
    if cache is None:
        return {}
    try:
        known = json.loads(cache.read_text(encoding="utf8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _write_cache(cache: Path | None, known: dict[str, str]) -> None:
    """Best effort: without the cache the digest is only slower next time."""
    if cache is None:
        return
    try:
        cache.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=cache.parent, delete=False, encoding="utf8") as file:
            json.dump(known, file)
        os.replace(file.name, cache)
    except OSError:
        return
