"""What is said to processes apart: places of buffers, and results that come out as they went in."""

import pytest

from kveik.store.apart_wire import (
    INLINE,
    Answer,
    Call,
    decode_answer,
    decode_call,
    encode,
    packed,
    place_in,
    unpacked,
)
from kveik.store.base import MISS, BlockResult, Status, failed


def test_a_buffer_within_the_memory_is_named_by_its_offset() -> None:
    memory = memoryview(bytearray(1000))
    assert place_in(memory, memory[200:300]) == (200, 100)
    assert place_in(memory, memory) == (0, 1000)
    assert place_in(memory, memory[999:]) == (999, 1)


@pytest.mark.parametrize("part", [slice(900, 1100), slice(1000, 1010), slice(0, 0)], ids=["half", "beyond", "empty"])
def test_a_buffer_that_is_not_wholly_within_travels_in_the_message(part: slice) -> None:
    larger = memoryview(bytearray(2000))
    buffer = larger[part]
    assert place_in(larger[:1000], buffer) == (INLINE, len(buffer))


def test_calls_and_answers_come_out_as_they_went_in() -> None:
    call = Call("put", [b"k" * 52], 1.5, [(INLINE, 5), (4096, 8)], [b"abcde"])
    assert decode_call(encode(call)) == call
    answer = Answer([True, False], [("hit", 5, "", "")], [b"abcde"])
    assert decode_answer(encode(answer)) == answer


def test_results_keep_status_size_reason_and_words() -> None:
    results = [BlockResult(Status.HIT, 4096), MISS, failed("no_room", "it is full")]
    again = unpacked(packed(results))
    assert again == results
    assert again[2].detail == "it is full"
