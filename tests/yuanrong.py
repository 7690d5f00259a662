"""A real openYuanrong datasystem on loopback for tests: one etcd and workers that are killed, stopped and restarted."""

import json
import os
import shutil
import signal
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from kveik.config import StoreSettings, YuanrongSettings
from kveik.engine.process import ServerProcess, free_port
from kveik.errors import ConfigError
from kveik.launch.yuanrong_trial import (
    LEAST_MEMORY_BYTES,
    YuanrongTrial,
    worker_command,
    worker_environment,
    worker_flags,
)
from kveik.store.yuanrong_client import require_package
from tests.etcd import Etcd

START_S = 90.0


def package() -> Path:
    """The client's package, or a skip that says how to get it."""
    try:
        return require_package()
    except ConfigError as error:
        pytest.skip(str(error))


class Worker:
    """One worker. Its address and files stay the same from start to start; its memory does not."""

    def __init__(self, folder: Path, etcd: Etcd, flags: Mapping[str, str]) -> None:
        folder.mkdir()
        found = package()
        self._trial = YuanrongTrial(folder, free_port(), etcd.port, 0, LEAST_MEMORY_BYTES)
        defaults = json.loads((found / "worker_config.json").read_text(encoding="utf8"))
        command = worker_command(found, {**worker_flags(defaults, self._trial), **flags})
        environment = {**os.environ, **worker_environment(found, os.environ)}
        self._process = ServerProcess("datasystem worker", command, environment, folder / "worker.log")

    @property
    def address(self) -> str:
        return self._trial.worker

    @property
    def stores(self) -> StoreSettings:
        """Settings of an agent that uses this worker, with the default waits."""
        return StoreSettings(yuanrong=YuanrongSettings(worker=self.address))

    def stores_with(self, request_s: float) -> StoreSettings:
        """The same with other waits; a worker that is killed or hangs costs so much each time."""
        return StoreSettings(yuanrong=YuanrongSettings(worker=self.address, connect_s=1.0, request_s=request_s))

    def start(self) -> "Worker":
        self._trial.ready_file.unlink(missing_ok=True)
        self._process.start()
        self._process.wait_ready(self._trial.ready_file.exists, START_S)
        return self

    def kill(self) -> None:
        """kill -9; all blocks of this worker are gone."""
        self._process.kill()

    def pause(self) -> None:
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    @property
    def runs(self) -> bool:
        return self._process.running

    def _signal(self, number: signal.Signals) -> None:
        for process in self._process.processes:
            process.send_signal(number)


class Cluster:
    """Workers that know each other by one etcd."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.etcd = Etcd(folder)
        self.etcd.start()
        self._workers: list[Worker] = []

    def worker(self, **flags: str) -> Worker:
        """One more worker, which runs; with flags of its own."""
        return self.future_worker(**flags).start()

    def future_worker(self, **flags: str) -> Worker:
        """One more worker, to be started."""
        worker = Worker(self._folder / f"w{len(self._workers)}", self.etcd, flags)
        self._workers.append(worker)
        return worker

    def close(self) -> None:
        for worker in self._workers:
            worker.kill()
        self.etcd.kill()


@contextmanager
def running_cluster() -> Iterator[Cluster]:
    """Its folder has a short name: paths of sockets are cut at a hundred characters."""
    package()
    folder = Path(tempfile.mkdtemp(prefix="kveik-yr-"))
    cluster = Cluster(folder)
    try:
        yield cluster
    finally:
        cluster.close()
        shutil.rmtree(folder, ignore_errors=True)
