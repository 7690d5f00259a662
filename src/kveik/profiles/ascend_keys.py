"""Keys of ``--additional-config``: vllm-ascend refuses to start with one that it does not know. Pure but for reading.

The option belongs to plugins: a document with none of vllm-ascend's keys, and nothing like them, is somebody else's.
"""

import difflib
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from kveik.profiles.catalog import data_table
from kveik.profiles.line_finding import Finding

_FLAG = "--additional-config"
_SOURCE = "vllm-ascend 0.30, ascend_config.py"


def unknown_keys(document: Mapping[str, Any]) -> Iterator[Finding]:
    """Keys that are unknown, gone or moved, at the top and in the tables whose keys are known."""
    table = data_table("ascend_config")
    known, gone, moved = table["keys"], table["gone"], table["moved"]
    if not any(key in known or key in gone or _near(key, known) for key in document):
        return
    for key, value in document.items():
        if key in gone:
            yield Finding("error", _FLAG, f"{key} is gone: vllm-ascend would not start", gone[key], _SOURCE)
        elif key not in known:
            yield _unknown(key, known)
        elif key in moved:
            yield Finding("note", _FLAG, f"{key} has moved; it is still taken, with a warning",
                          f'{{"{moved[key]}":{{"{key}":...}}}}', _SOURCE)  # fmt: skip
        inner = table["tables"].get(key)
        if inner and isinstance(value, Mapping):
            yield from (_unknown(f"{key}.{name}", inner) for name in value if name not in inner)


def _unknown(key: str, known: Collection[str]) -> Finding:
    told = f"vllm-ascend knows no key {key}, and would not start"
    return Finding("error", _FLAG, told, _near(key.rpartition(".")[2], known), _SOURCE)


def _near(key: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(key, known, n=1, cutoff=0.8)
    return near[0] if near else ""
