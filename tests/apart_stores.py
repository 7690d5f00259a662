"""Stores for processes apart that hang or die when a file says so. A process loads this by its name."""

import os
import time
from collections.abc import Sequence
from pathlib import Path

from kveik.clock import Deadline
from kveik.errors import StoreError
from kveik.kv.keys import BlockKey
from kveik.store.base import BlockResult, Status
from kveik.store.memory import MemoryStore
from kveik.store.yuanrong import YuanrongStore
from kveik.store.yuanrong_client import KvClient, YuanrongOptions, connected


class MoodyStore(MemoryStore):
    """Notes its process in the folder; a get waits while ``hold`` is there and dies if ``die`` is."""

    def __init__(self, folder: str) -> None:
        super().__init__()
        self._folder = Path(folder)
        if (self._folder / "refuse").exists():
            raise StoreError("this store does not like to be opened")
        (self._folder / f"process-{os.getpid()}").touch()

    def get(self, keys: Sequence[BlockKey], buffers: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        if (self._folder / "die").exists():
            os._exit(3)
        if (self._folder / "hold").exists():
            (self._folder / "held").touch()
        while (self._folder / "hold").exists():
            time.sleep(0.01)
        return super().get(keys, buffers, deadline)


def moody(folder: str) -> MoodyStore:
    return MoodyStore(folder)


class UnsealedYuanrongStore(YuanrongStore):
    """Puts bytes as they come under keys that are free: what somebody else may have done to a tier."""

    def __init__(self, client: KvClient, options: YuanrongOptions) -> None:
        super().__init__(client, options)
        self._raw = client

    def put(self, keys: Sequence[BlockKey], frames: Sequence[memoryview], deadline: Deadline) -> list[BlockResult]:
        for name, value in zip(self._names(keys), frames, strict=True):
            self._raw.set_new(name, value)
        return [BlockResult(Status.STORED)] * len(keys)


def unsealed_yuanrong(**options: str | float | bool) -> UnsealedYuanrongStore:
    told = YuanrongOptions(**options)  # type: ignore[arg-type]
    return UnsealedYuanrongStore(connected(told), told)
