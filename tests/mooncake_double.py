"""A scripted library in Mooncake's place: it keeps blocks in its process, and hangs, fails or crashes when told to."""

import json
from dataclasses import replace
from pathlib import Path

from kveik.store.mooncake_client import HostPlan

#: The module that the host process finds instead of ``mooncake.store``.
LIBRARY = '''
import ctypes, json, os, pathlib, time

FAULTS = pathlib.Path(os.environ["DOUBLE_FAULTS"])


def fault(operation):
    """What was told to happen to this operation: nothing, a number for every key, "hang", "crash" or "raise"."""
    told = json.loads(FAULTS.read_text()).get(operation)
    if told == "hang":
        time.sleep(3600)
    if told == "crash":
        os.abort()
    if told == "raise":
        raise RuntimeError("told to")
    return told


class ReplicateConfig:
    replica_num = 1
    with_soft_pin = False
    preferred_segments = []


class MooncakeDistributedStore:
    def __init__(self):
        self._blocks = {}

    def setup(self, *arguments):
        return fault("setup") or 0

    def register_buffer(self, address, size):
        return fault("register") or 0

    def get_hostname(self):
        return "double:1"

    def close(self):
        FAULTS.with_name("closed").touch()

    def batch_put_session_start(self, keys, sizes, config):
        FAULTS.with_name("config").write_text(
            json.dumps([config.replica_num, config.with_soft_pin, config.preferred_segments])
        )
        told = fault("put")
        return [told] * len(keys) if told else [-705 if key in self._blocks else 0 for key in keys]

    def batch_put_from_multi_buffer_ranges(self, keys, addresses, sizes, offsets):
        told = fault("move")
        if told is not None:
            return [told] * len(keys)
        self._begun = {key: ctypes.string_at(one[0], size[0]) for key, one, size in zip(keys, addresses, sizes)}
        return [size[0] for size in sizes]

    def batch_put_session_end(self, keys):
        told = fault("end")
        if told is not None:
            return [told] * len(keys)
        self._blocks.update((key, self._begun[key]) for key in keys)
        return [0] * len(keys)

    def batch_put_session_revoke(self, keys):
        FAULTS.with_name("revoked").write_text(json.dumps(keys))
        return [0] * len(keys)

    def batch_get_into(self, keys, addresses, sizes):
        told = fault("get")
        if told is not None:
            return [told] * len(keys)
        return [self._get(*one) for one in zip(keys, addresses, sizes)]

    def _get(self, key, address, size):
        block = self._blocks.get(key)
        if block is None:
            return -704
        if len(block) > size:
            return -600
        ctypes.memmove(address, block, len(block))
        return len(block)

    def batch_is_exist(self, keys):
        told = fault("exist")
        return [told] * len(keys) if told is not None else [int(key in self._blocks) for key in keys]

    def batch_remove(self, keys, force):
        told = fault("remove")
        if told is not None:
            return [told] * len(keys)
        return [-704 if self._blocks.pop(key, None) is None else 0 for key in keys]

    def remove_by_regex(self, expression, force):
        import re

        gone = [key for key in self._blocks if re.search(expression, key)]
        for key in gone:
            del self._blocks[key]
        return len(gone)
'''


class Double:
    """The library in a folder, and what is told to it."""

    def __init__(self, folder: Path) -> None:
        package = folder / "double" / "mooncake"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        self._library = package / "store.py"
        self.be(LIBRARY)
        self._faults = folder / "faults"
        self.environment = {"PYTHONPATH": str(package.parent), "DOUBLE_FAULTS": str(self._faults)}
        self.tell()

    def be(self, library: str) -> None:
        """From its next start on, the library is this text."""
        self._library.write_text(library)

    def tell(self, **faults: int | str) -> None:
        """From now on these operations do that; all others work."""
        part = self._faults.with_suffix(".part")
        part.write_text(json.dumps(faults))
        part.replace(self._faults)

    def plan(self, *, threads: int = 2, lent_bytes: int = 0) -> HostPlan:
        plan = HostPlan(setup=("host", "P2PHANDSHAKE", lent_bytes, 1, "tcp", "", "master:1"), threads=threads)
        return replace(plan, environment=self.environment)

    @property
    def closed(self) -> bool:
        """Whether the library was told to give its memory back."""
        return self._faults.with_name("closed").exists()

    @property
    def revoked(self) -> object:
        """The keys whose sessions were given up last."""
        return json.loads(self._faults.with_name("revoked").read_text())

    @property
    def config(self) -> object:
        """The last put's copies, pin and wished segments."""
        return json.loads(self._faults.with_name("config").read_text())
