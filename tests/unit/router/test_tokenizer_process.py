"""Tokenizers in a process of their own give the same tokens, and their death costs one answer."""

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from kveik.errors import RenderError
from kveik.router import tokenizer_process
from kveik.router.tokenization import Tokenization
from kveik.router.tokenizer import TokenizerFiles
from kveik.router.tokenizer_process import TokenizerProcess
from tests.agents import wait_until
from tests.model_folders import make_model_folder


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model_folder(tmp_path_factory.mktemp("model"), begin_token=True) / "tokenizer.json"


@pytest.fixture
def process() -> Iterator[TokenizerProcess]:
    started = TokenizerProcess()
    yield started
    started.close()
    assert not children()


def children() -> list[int]:
    return [one.pid for one in psutil.Process().children() if "tokenizer_server" in " ".join(one.cmdline())]


def test_it_gives_what_the_tokenizer_gives_here(file: Path, process: TokenizerProcess) -> None:
    here = TokenizerFiles()
    assert process.about(file) == here.about(file)
    texts = ["Hello", "", "中文 👩‍👩‍👧‍👦", "boats\n" * 1000]
    assert process.encode(file, texts) == here.encode(file, texts)
    assert process.text_of(file, 1) == here.text_of(file, 1) == "<|im_start|>"
    assert Tokenization(file, process).ids("<|im_start|>a", special_tokens=True) == [
        0, 1, *Tokenization(file, here).ids("a")
    ]  # fmt: skip


def test_it_starts_with_the_first_call_and_ends_with_its_owner(file: Path) -> None:
    process = TokenizerProcess()
    assert not children()
    process.encode(file, ["a"])
    assert len(children()) == 1
    process.close()
    assert not children()
    with pytest.raises(RenderError, match="the router ends"):
        process.encode(file, ["a"])


def test_what_is_no_tokenizer_is_told_with_the_reason(tmp_path: Path, process: TokenizerProcess) -> None:
    with pytest.raises(RenderError, match="no tokenizer in"):
        process.about(tmp_path / "tokenizer.json")


def test_a_process_that_died_is_started_again_by_the_next_call(file: Path, process: TokenizerProcess) -> None:
    expected = process.encode(file, ["a text"])
    (pid,) = children()
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(RenderError, match="process died"):
        process.encode(file, ["a text"])
    assert process.encode(file, ["a text"]) == expected
    assert children() != [pid]


def test_a_process_that_hangs_is_ended_in_time(
    file: Path, process: TokenizerProcess, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenizer_process, "STUCK_S", 0.2)
    process.encode(file, ["a"])
    process.end_if_stuck()
    (pid,) = children()
    os.kill(pid, signal.SIGSTOP)
    failed: list[str] = []

    def ask() -> None:
        try:
            process.encode(file, ["b"])
        except RenderError as error:
            failed.append(str(error))

    def is_over() -> bool:
        process.end_if_stuck()
        return not thread.is_alive()

    thread = threading.Thread(target=ask)
    thread.start()
    wait_until(is_over, "the call has ended")
    assert failed == ["the tokenizer's process died"]
    assert process.encode(file, ["b"])


def test_calls_of_several_threads_get_their_own_answers(file: Path, process: TokenizerProcess) -> None:
    here, wrong = TokenizerFiles(), []

    def ask(number: int) -> None:
        for step in range(20):
            text = f"thread {number} step {step} " * 20
            if process.encode(file, [text]) != here.encode(file, [text]):
                wrong.append(text)

    threads = [threading.Thread(target=ask, args=(number,)) for number in range(4)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong
