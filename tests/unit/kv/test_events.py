"""KV events are read as vLLM writes them, and objected to where they don't mean what they seem to."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.errors import EventFormatError
from kveik.kv.events import (
    AllBlocksCleared,
    BlockRemoved,
    BlockStored,
    Course,
    Standing,
    decode_batch,
    in_own_memory,
    objection,
    salt_of,
    short_hash,
)


def stored(**changes: Any) -> BlockStored:
    return msgspec.structs.replace(BlockStored([1, 2], None, list(range(32)), 16, medium="GPU", group_idx=0), **changes)


def payload(*events: dict[str, Any], rank: int | None = 0) -> bytes:
    return msgspec.msgpack.encode([12.5, list(events), *([] if rank is None else [rank])])


def test_a_batch_of_all_kinds_of_events_is_read() -> None:
    batch = decode_batch(
        payload(
            {
                "type": "BlockStored", "block_hashes": [7, b"x" * 32], "parent_block_hash": None, "token_ids": [1, 2],
                "block_size": 1, "lora_id": None, "medium": "GPU", "lora_name": None,
                "extra_keys": [["salt"], None], "group_idx": 0,
            },
            {"type": "BlockRemoved", "block_hashes": [7], "medium": "GPU"},
            {"type": "AllBlocksCleared"},
        )
    )  # fmt: skip
    one, two, three = batch.events
    assert isinstance(one, BlockStored)
    assert one.block_hashes == [7, b"x" * 32]
    assert salt_of(one) == "salt"
    assert isinstance(two, BlockRemoved)
    assert in_own_memory(two)
    assert isinstance(three, AllBlocksCleared)
    assert (batch.ts, batch.data_parallel_rank) == (12.5, 0)


@pytest.mark.parametrize("token", [-1, 1 << 32, 1.5, "a", None])
def test_tokens_that_are_none_are_refused(token: object) -> None:
    event = {
        "type": "BlockStored",
        "block_hashes": [1],
        "parent_block_hash": None,
        "token_ids": [token],
        "block_size": 1,
    }
    with pytest.raises(EventFormatError):
        decode_batch(payload(event))


def test_members_that_later_versions_add_are_ignored_and_missing_ones_have_defaults() -> None:
    batch = decode_batch(
        payload(
            {
                "type": "BlockStored", "block_hashes": [1], "parent_block_hash": 3, "token_ids": [5], "block_size": 1,
                "kv_cache_spec_kind": "full_attention", "session_id": "s", "locality": None, "what else": {"a": 1},
            },
            rank=None,
        )
    )  # fmt: skip
    assert batch.data_parallel_rank is None
    assert objection(batch.events[0], 1) == ""  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xc1",
        b"\x93\x01",
        msgspec.msgpack.encode({"events": []}),
        payload({"type": "BlockMoved"}),
        b"\x91" * 5000,
    ],
    ids=["nothing", "no msgpack", "cut", "a map", "an unknown event", "nested for ever"],
)
def test_what_is_no_batch_is_refused_with_a_reason(data: bytes) -> None:
    with pytest.raises(EventFormatError, match="no batch of KV events"):
        decode_batch(data)


@given(st.binary(max_size=300))
def test_arbitrary_bytes_are_a_batch_or_an_error(data: bytes) -> None:
    try:
        assert isinstance(decode_batch(data).events, list)
    except EventFormatError:
        pass


def test_a_block_has_one_short_name_whether_its_hash_is_written_as_number_or_bytes() -> None:
    whole = bytes(range(32))
    assert short_hash(whole) == short_hash(int.from_bytes(whole, "big")) == int.from_bytes(whole[-8:], "big")


def test_events_of_other_media_are_told_apart() -> None:
    assert in_own_memory(stored(medium=None))
    assert in_own_memory(stored(medium="GPU"))
    assert not in_own_memory(stored(medium="CPU"))
    assert not in_own_memory(BlockRemoved([1], "STORAGE"))


def test_sound_blocks_are_not_objected_to() -> None:
    assert objection(stored(), 16) == "" == objection(stored(), 0)


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"block_size": 32}, "blocks of 32 tokens, expected 16"),
        ({"block_size": 0}, "blocks of 0 tokens"),
        ({"group_idx": 1}, "several KV cache groups"),
        ({"kv_cache_spec_sliding_window": 512}, "sliding window of 512"),
        ({"token_ids": list(range(48))}, "2 blocks with 48 tokens"),
    ],
)
def test_blocks_that_do_not_tell_what_is_cached_are_objected_to(changes: dict[str, Any], why: str) -> None:
    assert why in objection(stored(**changes), 16)


@pytest.mark.parametrize(
    ("changes", "salt"),
    [
        ({}, ""),
        ({"extra_keys": [None, None]}, ""),
        ({"extra_keys": [["tenant"], None]}, "tenant"),
        ({"extra_keys": [["tenant"], None], "parent_block_hash": 5}, None),
        ({"extra_keys": [None, ["tenant"]]}, None),
        ({"extra_keys": [[["image", 3]], None]}, None),
        ({"extra_keys": [["adapter", "tenant"], None]}, None),
        ({"extra_keys": [["adapter"], ["adapter"]], "lora_name": "adapter"}, None),
        ({"lora_id": 1}, None),
        ({"extra_keys": [[b"digest of an embedding"], None]}, None),
    ],
)
def test_only_a_salt_on_the_first_block_is_known_to_belong_to_a_prompt(
    changes: dict[str, Any], salt: str | None
) -> None:
    assert salt_of(stored(**changes)) == salt


def test_a_course_knows_next_repeated_missing_and_other_batches() -> None:
    course = Course()
    assert course.standing(0, b"a") is Standing.NEXT
    course.take(0, b"a")
    course.take(1, b"b")
    assert course.standing(2, b"c") is Standing.NEXT
    assert course.standing(4, b"e") is Standing.GAP
    assert course.standing(1, b"b") is Standing.REPEATED
    assert course.standing(1, b"another life's") is Standing.ANEW
    assert course.standing(0, b"another life's") is Standing.ANEW


def test_a_course_remembers_a_bounded_number_of_batches() -> None:
    course = Course()
    for number in range(Course.REMEMBERED + 10):
        course.take(number, b"%d" % number)
    assert course.standing(9, b"9") is Standing.ANEW, "too long ago to be known: better asked for again"
    assert course.standing(10, b"10") is Standing.REPEATED
