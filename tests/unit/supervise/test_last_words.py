"""The reason for an ending, found in a log as engines write it."""

import pytest

from kveik.supervise.last_words import cause, ending, why_ended

VLLM = """\
(EngineCore pid=1842) INFO 11-29 21:14:02 [kv_cache_utils.py:1307] GPU KV cache size: 10 tokens
(EngineCore pid=1842) ERROR 11-29 21:14:02 [core.py:866] EngineCore failed to start.
(EngineCore pid=1842) ERROR 11-29 21:14:02 [core.py:866] Traceback (most recent call last):
(EngineCore pid=1842) ERROR 11-29 21:14:02 [core.py:866]     raise ValueError(
(EngineCore pid=1842) ERROR 11-29 21:14:02 [core.py:866] ValueError: To serve at least one request, 1.0 GiB is needed
(APIServer pid=1700) Traceback (most recent call last):
(APIServer pid=1700)   File "core_client.py", line 1
(APIServer pid=1700) RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""


def test_the_root_cause_is_found_above_the_error_that_points_to_it() -> None:
    assert cause(VLLM) == "ValueError: To serve at least one request, 1.0 GiB is needed"


def test_an_error_that_only_points_elsewhere_is_better_than_nothing() -> None:
    assert cause(VLLM.splitlines()[-1]).startswith("RuntimeError: Engine core initialization failed")


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("\n \n", ""),
        ("loading\nno room for the KV cache\n", "no room for the KV cache"),
        ("kveik agent: another agent listens at /s\nbye\n", "kveik agent: another agent listens at /s"),
        ("vllm: error: unrecognized arguments: --foo\n", "vllm: error: unrecognized arguments: --foo"),
        ("torch.OutOfMemoryError: out of memory\nwarning: 3 leaked\n", "torch.OutOfMemoryError: out of memory"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_the_last_line_that_says_something_is_taken(log: str, said: str) -> None:
    assert cause(log) == said


@pytest.mark.parametrize(
    ("code", "said"),
    [
        (None, "it ended"),
        (0, "it ended with exit code 0"),
        (3, "it ended with exit code 3"),
        (-9, "it was ended by SIGKILL"),
        (137, "it was ended by SIGKILL"),
        (-11, "it was ended by SIGSEGV"),
        (255, "it ended with exit code 255"),
    ],
)
def test_exit_codes_are_said_in_words(code: int | None, said: str) -> None:
    assert ending(code) == said


def test_both_make_one_phrase() -> None:
    assert why_ended(1, "no room\n") == "it ended with exit code 1; its log says: no room"
    assert why_ended(-9, "") == "it was ended by SIGKILL"
