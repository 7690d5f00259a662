"""Which lines are one message."""

from kveik.doctor.log_line import read_line
from kveik.doctor.log_message import Message, Part, is_fault, opened


def begun(text: str) -> Message:
    return opened(1, read_line(text), told=True)


def taken(message: Message, *lines: str) -> list[Part]:
    return [message.takes(read_line(line)) for line in lines]


def test_a_headline_its_traceback_and_its_exception_are_one_message_that_tells_the_exception() -> None:
    message = begun("ERROR 11-30 01:00:22 [core.py:1] it failed")
    parts = taken(
        message,
        "Traceback (most recent call last):",
        '  File "a.py", line 1, in f',
        "    g()",
        "KeyError: 'a'",
        "ERROR 11-30 01:00:23 [core.py:9] something else",
    )
    assert parts == [Part.GOES_ON, Part.CODE, Part.CODE, Part.TELLS, Part.BEGINS]
    assert message.text == "KeyError: 'a'"


def test_of_a_chain_the_first_exception_is_told_since_it_caused_the_others() -> None:
    message = begun("Traceback (most recent call last):")
    parts = taken(
        message,
        "OSError: first",
        "",
        "During handling of the above exception, another exception occurred:",
        "Traceback (most recent call last):",
        "  File x",
        "RuntimeError: second",
    )
    assert parts == [Part.TELLS, Part.GOES_ON, Part.GOES_ON, Part.GOES_ON, Part.CODE, Part.TELLS]
    assert message.text == "OSError: first"


def test_a_traceback_that_no_chain_announces_is_a_message_of_its_own() -> None:
    message = begun("Traceback (most recent call last):")
    assert taken(message, "OSError: first", "Traceback (most recent call last):") == [Part.TELLS, Part.BEGINS]


def test_lines_of_the_same_call_of_the_logger_go_on() -> None:
    message = begun("ERROR 11-30 01:00:22 [core.py:1] it failed")
    assert taken(message, "ERROR 11-30 01:00:22 [core.py:1] because of this") == [Part.GOES_ON]
    assert taken(message, "ERROR 11-30 01:00:22 [core.py:2] and that") == [Part.BEGINS]
    assert taken(message, "INFO 11-30 01:00:22 [core.py:1] all is well") == [Part.BEGINS]


def test_what_is_indented_below_an_exception_belongs_to_it() -> None:
    message = begun("Traceback (most recent call last):")
    assert taken(message, "ValidationError: 1 error", "  Value error, too long") == [Part.TELLS, Part.GOES_ON]


def test_a_fault_is_known_by_its_level_or_its_form() -> None:
    faults = [
        "ERROR 11-30 01:00:22 [core.py:1] it failed",
        "INFO 11-30 01:00:22 [core.py:1] Traceback (most recent call last):",
        "Traceback (most recent call last):",
        "torch.OutOfMemoryError: x",
        "api_server.py: error: unrecognized arguments",
        "panic: runtime error",
    ]
    sound = [
        "INFO 11-30 01:00:22 [core.py:1] no ValueError: at all",
        "WARNING 11-30 01:00:22 [core.py:1] odd",
        "Loading weights: 50%",
        "errors: 0",
    ]
    assert [is_fault(read_line(line)) for line in faults] == [True] * len(faults)
    assert [is_fault(read_line(line)) for line in sound] == [False] * len(sound)


def test_a_group_of_exceptions_is_told_by_the_exceptions_in_it() -> None:
    message = begun("  + Exception Group Traceback (most recent call last):")
    parts = taken(
        message,
        "  |   File x, line 1, in f",
        "  | ExceptionGroup: two went wrong (1 sub-exception)",
        "  +-+---------------- 1 ----------------",
    )
    assert parts == [Part.CODE, Part.TELLS, Part.GOES_ON]
    assert taken(message, "    | Traceback (most recent call last):") == [Part.BEGINS]
    inner = begun("    | Traceback (most recent call last):")
    assert taken(inner, "    |   File y", "    | KeyError: 'a'") == [Part.CODE, Part.TELLS]
    assert inner.text == "KeyError: 'a'"
