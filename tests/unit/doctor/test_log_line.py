"""Lines of all loggers are taken apart alike."""

import pytest

from kveik.doctor.log_line import Level, read_line

LINES = {
    "vllm": (
        "(Worker_TP0 pid=12) ERROR 11-30 01:00:22 [core.py:133] it broke",
        (Level.ERROR, "11-30 01:00:22", "Worker_TP0 pid=12", "core.py:133", "it broke"),
    ),
    "kveik": (
        "2026-11-30 01:29:24,001 WARNING kveik.agent: it broke",
        (Level.WARNING, "2026-11-30 01:29:24,001", "", "kveik.agent", "it broke"),
    ),
    "glog": (
        "E1130 03:22:48.287541 20616 transfer_metadata.cpp:1098] it broke",
        (Level.ERROR, "1130 03:22:48.287541", "", "transfer_metadata.cpp:1098", "it broke"),
    ),
    "yuanrong": (
        "2026-11-30T03:23:08.161268 | E | logging.cpp:210 | node | 20934:20940 | 6bda56ea |  |  it broke",
        (Level.ERROR, "2026-11-30T03:23:08.161268", "20934", "logging.cpp:210", "it broke"),
    ),
    "etcd before 3.5": (
        "2026-11-30 03:23:03.463549 E | etcdserver/api: it broke",
        (Level.ERROR, "2026-11-30 03:23:03.463549", "", "etcdserver/api", "it broke"),
    ),
    "etcd": (
        '{"level":"warn","ts":"2026-11-30T03:23:41.084Z","caller":"embed/etcd.go:371","msg":"it broke"}',
        (Level.WARNING, "2026-11-30T03:23:41.084Z", "", "embed/etcd.go:371", '"msg":"it broke"}'),
    ),
    "raft of etcd": (
        "raft2026/11/29 23:28:19 INFO: became leader",
        (Level.INFO, "2026/11/29 23:28:19", "", "", "became leader"),
    ),
    "cann": (
        "[ERROR] RUNTIME(12,python3):2026-11-30-01:29:24.001.002 [stream.cc:12]12 it broke",
        (Level.ERROR, "2026-11-30-01:29:24.001.002", "RUNTIME(12,python3)", "", "[stream.cc:12]12 it broke"),
    ),
    "torch_npu": (
        "[ERROR] 2026-11-30-01:29:24 (PID:12, Device:0, RankID:-1) ERR00100 it broke",
        (Level.ERROR, "2026-11-30-01:29:24", "PID:12, Device:0, RankID:-1", "", "ERR00100 it broke"),
    ),
    "torch": (
        "[W1130 01:02:01.864103308 utils.cpp:68] Warning: it broke",
        (Level.WARNING, "1130 01:02:01.864103308", "", "utils.cpp:68", "Warning: it broke"),
    ),
    "uvicorn": ("ERROR:    it broke", (Level.ERROR, "", "", "", "it broke")),
    "others": (
        "[2026-11-30 01:29:24.001] [info] all is well",
        (Level.INFO, "2026-11-30 01:29:24.001", "", "", "all is well"),
    ),
    "a process without logger": (
        "(EngineCore pid=12)   File x",
        (Level.PLAIN, "", "EngineCore pid=12", "", "  File x"),
    ),
    "a rank of torch": ("[rank3]: Traceback", (Level.PLAIN, "", "rank3", "", "Traceback")),
    "nobody": ("    raise ValueError(x)", (Level.PLAIN, "", "", "", "    raise ValueError(x)")),
}


@pytest.mark.parametrize("logger", LINES)
def test_a_line_says_level_time_process_and_text(logger: str) -> None:
    raw, (level, time, process, where, text) = LINES[logger]
    line = read_line(f"{raw}\n")
    assert (line.level, line.time, line.process, line.where, line.text) == (level, time, process, where, text)


def test_the_name_that_a_collector_puts_before_a_line_is_the_process() -> None:
    line = read_line("engine-1  | 2026-11-30 01:29:24,001 ERROR kveik.agent: it broke")
    assert (line.process, line.level, line.text) == ("engine-1", Level.ERROR, "it broke")


def test_the_moment_that_a_container_runtime_puts_before_a_line_is_taken_off() -> None:
    line = read_line("2026-11-30T01:29:24.001Z stderr F (Worker pid=1) ERROR 11-30 01:29:24 [a.py:1] it broke")
    assert (line.time, line.process, line.text) == ("11-30 01:29:24", "Worker pid=1", "it broke")
    plain = read_line("2026-11-30T01:29:24.001Z Segmentation fault")
    assert (plain.time, plain.level, plain.text) == ("2026-11-30T01:29:24.001Z", Level.PLAIN, "Segmentation fault")


def test_the_indentation_of_a_traceback_stays() -> None:
    assert read_line('(W pid=1) ERROR 11-30 01:29:24 [a.py:1]   File "x.py"').text == '  File "x.py"'


def test_colours_and_overwritten_progress_are_left_out() -> None:
    assert read_line("\x1b[31mERROR\x1b[0m: it broke").text == "it broke"
    assert read_line("10%\r50%\rERROR: it broke\n").text == "it broke"


def test_a_level_that_nobody_knows_counts_as_none() -> None:
    assert read_line('{"level":"odd","ts":"1","msg":"x"}').level is Level.PLAIN
