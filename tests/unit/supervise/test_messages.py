"""What is said over a control socket reads back as it was."""

import msgspec

from kveik.supervise.messages import Done, ProcessView, StatusAnswer


def test_an_answer_reads_back_as_it_was_written() -> None:
    engine = ProcessView(name="a", kind="engine", state="ready", pid=5, pids=(5, 6), degraded="graphs failed")
    answer = StatusAnswer(fleet="f", node="n", pid=1, config="/k.toml", processes=(engine,))
    assert msgspec.json.decode(msgspec.json.encode(answer), type=StatusAnswer) == answer


def test_no_word_of_an_error_means_done() -> None:
    assert msgspec.json.decode(b"{}", type=Done) == Done(error="", told="")
