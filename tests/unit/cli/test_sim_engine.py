"""``kveik sim-engine`` as a process: it says what it is, stops when told, and can be crashed."""

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from kveik.cli.main import main
from kveik.simulate.server import SimServer
from tests.unit.simulate.raw import CHAT, Raw, ask, events

PATH = "/v1/chat/completions"


@contextmanager
def running(*arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command on a free port, and its address."""
    command = [sys.executable, "-m", "kveik.cli.main", "sim-engine", "--port", "0", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            said = process.stdout.readline()
            address = re.fullmatch(r"kveik sim-engine: SIMULATED model (\S+) at (http://\S+)\n", said)
            assert address, said
            yield process, address[2]
        finally:
            process.kill()


def test_it_serves_until_a_signal_and_its_log_says_simulated() -> None:
    with running("--model", "m", "--answer-tokens", "3") as (process, url):
        assert ask(url, "GET", "/v1/models").json()["data"][0]["id"] == "m"
        answer = ask(url, "POST", PATH, {**CHAT, "model": "m"}).json()
        assert answer["usage"]["completion_tokens"] == 3
        process.send_signal(signal.SIGTERM)
        assert process.wait(10) == 0
        assert process.stderr is not None
        lines = process.stderr.read().splitlines()
        assert lines
        assert all("simulated engine" in line for line in lines)


@pytest.mark.parametrize(("drain_s", "whole"), [("10", True), ("0", False)])
def test_what_runs_may_end_after_the_signal_if_there_is_time(drain_s: str, whole: bool) -> None:
    with running("--drain-s", drain_s, "--decode-s", "0.01") as (process, url), Raw(url) as raw:
        raw.send("POST", PATH, {**CHAT, "stream": True, "max_tokens": 30}).until(b"\r\n\r\n")
        process.send_signal(signal.SIGTERM)
        if whole:
            assert events(b"".join(raw.chunks()))[-1] == "[DONE]"
        else:
            assert b"[DONE]" not in raw.to_the_end()
        assert process.wait(10) == 0


def test_the_crash_switch_kills_the_process() -> None:
    with running() as (process, url):
        ask(url, "POST", "/sim", {"crash": True})
        with Raw(url) as raw:
            raw.send("POST", PATH, CHAT).to_the_end()
            assert raw.end in {"fin", "rst"}
        assert process.wait(10) == -signal.SIGKILL


def test_settings_come_from_file_environment_and_flags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text('[sim_engine]\nmodel = "from-file"\nmax_model_tokens = 100\n')
    monkeypatch.setenv("KVEIK_SIM_ENGINE_MAX_MODEL_TOKENS", "200")
    with running("--config", str(file)) as (_, url):
        (card,) = ask(url, "GET", "/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("from-file", 200)


def test_a_bad_setting_is_wrong_use(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sim-engine", "--capacity", "0"]) == 2
    assert "capacity is '0', expected at least 1" in capsys.readouterr().err


def test_a_port_that_is_taken_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    with SimServer() as engine:
        assert main(["sim-engine", "--port", str(engine.port)]) == 3
    assert "cannot listen" in capsys.readouterr().err


def test_prompts_can_have_the_tokens_of_a_model_s_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tokenizer = Tokenizer(WordLevel({"[UNK]": 0, "hello": 5, "world": 6}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = WhitespaceSplit()
    tokenizer.save(str(tmp_path / "tokenizer.json"))
    with running("--tokenizer", str(tmp_path)) as (_, url):
        assert ask(url, "POST", "/tokenize", {"prompt": "hello world"}).json()["tokens"] == [5, 6]
        answer = ask(url, "POST", "/v1/completions", {"prompt": "hello world hello", "max_tokens": 1}).json()
        assert answer["usage"]["prompt_tokens"] == 3
    assert main(["sim-engine", "--tokenizer", str(tmp_path / "nothing")]) == 3
    assert "tokenizer" in capsys.readouterr().err
