"""A log is read once, line by line, and what repeats is counted."""

import tracemalloc

from kveik.doctor.log_scan import LINE_CHARS_MAX, UNKNOWN_MAX, LogScan
from tests.log_samples import DICTIONARY, scanned

ERROR = "(Worker pid=7) ERROR 11-30 01:00:{:02} [a.py:{}] "
GONE = "E1130 03:18:{:02}.056640 8 client_service.cpp:1] Failed to ping master"


def test_equal_lines_are_one_group_with_count_first_and_last() -> None:
    scan = scanned("INFO: hello", *(GONE.format(second) for second in range(3)), "INFO: bye")
    (group,) = scan.found.values()
    assert (group.count, group.first.line, group.last.line) == (3, 2, 4)
    assert (group.first.time, group.last.time) == ("1130 03:18:00.056640", "1130 03:18:02.056640")
    assert scan.lines == 5


def test_a_group_knows_which_processes_wrote_it_of_a_few() -> None:
    lines = [f"(Worker_TP{rank} pid={rank}) ERROR 11-30 01:00:00 [a.py:1] EI0006 x" for rank in range(30)]
    (group,) = scanned(*lines).found.values()
    assert group.count == 30
    assert list(group.processes)[:2] == ["Worker_TP0 pid=0", "Worker_TP1 pid=1"]
    assert len(group.processes) == 8


def test_a_fault_that_no_entry_knows_is_unknown_and_counted_by_its_shape() -> None:
    scan = scanned(*(f"{ERROR.format(n, n)}the flux of unit {n} is 0x{n:x}" for n in range(5)))
    (group,) = scan.unknown.values()
    assert (group.entry, group.count, group.first.text) == (None, 5, "the flux of unit 0 is 0x0")
    assert scan.found == {}


def test_an_unknown_exception_is_told_by_itself_and_not_by_each_line_of_its_traceback() -> None:
    head = ERROR.format(0, 1)
    scan = scanned(
        f"{head}the loop ended",
        f"{head}Traceback (most recent call last):",
        f'{head}  File "a.py", line 1, in f',
        f"{head}    flux()",
        f"{head}FluxError: no flux",
    )
    assert [group.first.text for group in scan.unknown.values()] == ["FluxError: no flux"]
    assert [group.first.line for group in scan.unknown.values()] == [1]


def test_what_a_known_line_explains_is_not_unknown() -> None:
    scan = scanned(
        "Traceback (most recent call last):",
        "  File x",
        "pydantic_core.ValidationError: 1 validation error for ModelConfig",
        "  Value error, User-specified max_model_len (9) is greater than the derived max_model_len (8)",
    )
    assert scan.unknown == {}
    assert list(scan.found) == ["vllm-length-over-model"]


def test_a_known_headline_that_says_nothing_leaves_its_exception_unknown() -> None:
    head = ERROR.format(0, 1)
    scan = scanned(
        f"{head}WorkerProc hit an exception.", f"{head}Traceback (most recent call last):", f"{head}FluxError: no flux"
    )
    assert list(scan.found) == ["vllm-worker-exception"]
    assert [group.first.text for group in scan.unknown.values()] == ["FluxError: no flux"]


def test_processes_that_write_at_once_do_not_mix_their_tracebacks() -> None:
    one, other = ERROR.format(0, 1), ERROR.format(0, 1).replace("pid=7", "pid=8")
    scan = scanned(
        f"{one}Traceback (most recent call last):",
        f"{other}Traceback (most recent call last):",
        f"{one}  File x",
        f"{other}  File y",
        f"{one}FluxError: no flux",
        f"{other}KeyError: 'a'",
    )
    assert sorted(group.first.text for group in scan.unknown.values()) == ["FluxError: no flux", "KeyError: 'a'"]


def test_code_in_a_traceback_is_no_fault_unless_only_code_tells_it() -> None:
    head = "Traceback (most recent call last):"
    assert scanned(head, "    raise HFValidationError(", "Odd: x").found == {}
    assert list(scanned(head, "    assert backend is not None", "AssertionError").found) == ["pool-unknown-backend"]


def test_lines_marked_info_claim_nothing_but_what_is_looked_for_there() -> None:
    assert scanned("INFO 11-30 01:00:22 [a.py:1] its log says: EngineDeadError").found == {}
    quiet = "INFO 11-30 01:00:22 [a.py:1] GPU KV cache usage: 99.0%"
    assert list(scanned(quiet).found) == ["vllm-kv-nearly-full"]


def test_warnings_that_are_not_known_are_only_counted() -> None:
    scan = scanned("WARNING 11-30 01:00:22 [a.py:1] odd", "WARNING 11-30 01:00:22 [a.py:2] odder")
    assert (scan.warnings, scan.unknown, scan.found) == (2, {}, {})


def test_what_is_unknown_is_held_back_until_its_message_has_ended() -> None:
    scan = LogScan(DICTIONARY)
    assert scan.feed("ERROR 11-30 01:00:22 [a.py:1] no flux") == []
    (group,) = scan.feed("INFO 11-30 01:00:23 [a.py:2] next")
    assert group.first.text == "no flux"
    assert scan.settle() == []


def test_memory_does_not_grow_with_the_log() -> None:
    """Lines, kinds of unknown faults and processes without end are kept within bounds."""
    scan = LogScan(DICTIONARY)

    def feed(begin: int, end: int) -> None:
        for number in range(begin, end):
            word = "".join(chr(97 + int(digit)) for digit in str(number))
            for line in (f"(P{word} pid={number}) ERROR 11-30 01:00:22 [a.py:1] flux of {word}", GONE.format(1)):
                scan.feed(line)

    feed(0, 1000)
    tracemalloc.start()
    feed(1000, 2500)
    grown, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(scan.unknown) == UNKNOWN_MAX
    assert scan.unknown_more > 2000
    assert grown < 2 << 20


def test_a_line_without_end_is_cut() -> None:
    scan = scanned("ERROR: " + "x" * 10 * LINE_CHARS_MAX + " EE1002")
    assert scan.found == {}
    assert len(next(iter(scan.unknown.values())).first.text) == 400
