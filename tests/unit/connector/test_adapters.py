"""Requests with an adapter live in a namespace that holds the adapter's content."""

from pathlib import Path
from threading import Event
from types import SimpleNamespace

from kveik.connector.adapters import RequestNamespaces
from kveik.errors import KveikError
from kveik.kv.namespace import REQUIRED_FACTS, Namespace
from tests.agents import wait_until

BASE = Namespace(dict.fromkeys(REQUIRED_FACTS, "x"))


def adapter(number: int = 1, path: str = "/adapters/a", inplace: bool = False) -> SimpleNamespace:
    return SimpleNamespace(lora_int_id=number, lora_path=path, load_inplace=inplace)


def known(namespaces: RequestNamespaces, which: SimpleNamespace) -> bytes:
    wait_until(lambda: bool(namespaces.of(which)), "the adapter is identified")
    return namespaces.of(which)


def test_without_an_adapter_it_is_the_engines_namespace() -> None:
    assert RequestNamespaces(BASE).of(None) == BASE.digest


def test_the_content_of_an_adapter_decides() -> None:
    content = {"/adapters/a": "one", "/adapters/b": "two", "/adapters/copy": "one"}
    namespaces = RequestNamespaces(BASE, digest=lambda path: content[str(path)])
    one = known(namespaces, adapter(1, "/adapters/a"))
    assert one == known(namespaces, adapter(2, "/adapters/copy"))
    assert len({one, known(namespaces, adapter(3, "/adapters/b")), BASE.digest}) == 3


def test_nobody_waits_while_an_adapter_is_read() -> None:
    go = Event()

    def slow(path: Path) -> str:
        go.wait(10)
        return "digest"

    namespaces = RequestNamespaces(BASE, digest=slow)
    assert namespaces.of(adapter()) == b""
    go.set()
    assert known(namespaces, adapter()) != BASE.digest


def test_an_adapter_without_files_is_not_cached_for() -> None:
    failed = Event()

    def missing(path: Path) -> str:
        failed.set()
        raise KveikError("no weight files")

    namespaces = RequestNamespaces(BASE, digest=missing)
    namespaces.of(adapter())
    assert failed.wait(10)
    assert namespaces.of(adapter()) == b""


def test_an_adapter_that_may_be_reloaded_in_place_is_not_cached_for() -> None:
    assert RequestNamespaces(BASE, digest=lambda path: "digest").of(adapter(inplace=True)) == b""
