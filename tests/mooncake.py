"""A real Mooncake on loopback for tests: a master, and processes that lend memory, to be killed, paused and started."""

import importlib.util
import os
import sys
import time
import uuid
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kveik.clock import Deadline
from kveik.config import MooncakeSettings
from kveik.engine.process import free_port
from kveik.errors import StoreError
from kveik.kv.frame import HEADER_BYTES
from kveik.records import Listener, ignore
from kveik.store.apart import SharedMemory
from kveik.store.mooncake import MooncakeStore
from kveik.store.mooncake_link import MooncakeLink, Spot
from tests.blocks import make_block
from tests.servers import Server

MIB = 1 << 20
PATIENCE_S = 60.0


def program(name: str) -> str:
    """One of Mooncake's programs, or a skip that says how to get it."""
    found = Path(sys.executable).with_name(name)
    if importlib.util.find_spec("mooncake") is None or not found.is_file():
        pytest.skip("no Mooncake here: pip install mooncake-transfer-engine-non-cuda, apt-get install libibverbs1")
    return str(found)


class _Process(Server):
    """One process, started again with the same words."""

    def __init__(self, folder: Path, name: str, words: Sequence[str]) -> None:
        super().__init__(folder / f"{name}.log")
        self._words = list(words)

    def start(self) -> None:
        self.run(self._words, {**os.environ, "GLOG_minloglevel": "1", "MC_TCP_BIND_ADDRESS": "127.0.0.1"})


class Mooncake:
    """One master and the processes that lend memory to it, of ``lender_bytes`` each.

    The master forgets one that says nothing for ``patience_s``, and what lay there.
    """

    def __init__(self, folder: Path, lender_bytes: int = 256 * MIB, patience_s: int = 10) -> None:
        self._folder = folder
        self._lender_bytes = lender_bytes
        self._patience_s = patience_s
        self._rpc_port, self._http_port = free_port(), free_port()
        self.master = _Process(folder, "master", self._master_words())
        self.lenders: list[_Process] = []

    def _master_words(self) -> list[str]:
        return [
            program("mooncake_master"),
            f"--rpc_port={self._rpc_port}",
            "--rpc_address=127.0.0.1",
            f"--metrics_port={self._http_port}",
            "--metrics_host=127.0.0.1",
            "--enable_metric_reporting=false",
            f"--client_ttl={self._patience_s}",
        ]

    @property
    def settings(self) -> MooncakeSettings:
        """Of a store that joins it, under keys of its own."""
        return MooncakeSettings(
            master=f"127.0.0.1:{self._rpc_port}",
            master_http=f"127.0.0.1:{self._http_port}",
            host="127.0.0.1",
            prefix=f"t-{uuid.uuid4().hex[:8]}",
            staging_bytes=16 * MIB,
            threads=2,
        )

    def start(self) -> None:
        self.master.start()

    def add_lender(self) -> _Process:
        """One more process that lends memory."""
        words = [
            program("mooncake_client"),
            "--host=127.0.0.1",
            f"--port={free_port()}",
            f"--global_segment_size={self._lender_bytes // MIB}MB",
            f"--master_server_address=127.0.0.1:{self._rpc_port}",
            "--metadata_server=P2PHANDSHAKE",
        ]
        lender = _Process(self._folder, f"lender-{len(self.lenders)}", words)
        lender.start()
        self.lenders.append(lender)
        return lender

    def wait_usable(self) -> None:
        """Until a block can be put and read back."""
        until_s = time.monotonic() + PATIENCE_S
        trouble: object = "nothing was tried"
        while time.monotonic() < until_s:
            assert self.master.runs, self.master.log
            for lender in self.lenders:
                if not lender.runs:  # it found a port of its own in use
                    lender.start()
            try:
                store = open_store(replace(self.settings, prefix="usable"))
            except StoreError as error:
                trouble = error
                continue
            try:
                while time.monotonic() < until_s and all(lender.runs for lender in self.lenders):
                    block = make_block(int(time.monotonic_ns()))
                    (trouble,) = store.put([block.key], [block.frame], Deadline.after(5))
                    if trouble.ok:
                        store.delete([block.key])
                        return
                    time.sleep(0.05)
            finally:
                store.close()
        logs = "\n".join(process.log for process in (self.master, *self.lenders))
        raise AssertionError(f"Mooncake is not usable: {trouble}\n{logs}")

    def stop(self) -> None:
        for process in (*self.lenders, self.master):
            process.kill()


@contextmanager
def running_mooncake(
    folder: Path, *, lenders: int = 1, lender_bytes: int = 256 * MIB, patience_s: int = 10
) -> Iterator[Mooncake]:
    """A master with lenders, ready to be used."""
    mooncake = Mooncake(folder, lender_bytes, patience_s)
    try:
        mooncake.start()
        for _ in range(lenders):
            mooncake.add_lender()
        mooncake.wait_usable()
        yield mooncake
    finally:
        mooncake.stop()


def open_store(
    settings: MooncakeSettings,
    memory: SharedMemory | None = None,
    *,
    wait_s: float = 30.0,
    hang_s: float = 6.0,
    listener: Listener = ignore,
) -> MooncakeStore:
    """A store without an agent: what its callers give it is not in any arena, unless it is in ``memory``."""
    return MooncakeStore(
        MooncakeLink(settings, memory, wait_s=wait_s, hang_s=hang_s, listener=listener), settings.prefix
    )


def overwrite(link: MooncakeLink, name: str, value: bytes) -> None:
    """Have any bytes under a name, whatever was there; the store has no empty values, and gets one byte instead."""
    remove(link, name)
    spot = link.spot(memoryview(bytes(max(len(value), HEADER_BYTES))))
    assert isinstance(spot, Spot)
    shorter = replace(spot, view=spot.view[: max(1, len(value))])
    shorter.view[: len(value)] = value
    call = link.move("put", [name], [shorter])
    assert call is not None
    assert call.wait(PATIENCE_S)
    assert call.codes == [0]
    link.give(spot, lambda: False)


def remove(link: MooncakeLink, name: str) -> None:
    """Take something away."""
    call = link.ask("remove", [name])
    assert call is not None
    assert call.wait(PATIENCE_S)
