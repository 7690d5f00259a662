"""What a node remembers of keys in Mooncake, so that it keeps nothing there by asking."""

import pytest

from kveik.kv.keys import BlockKey
from kveik.store.mooncake_seen import BELIEVED_S, LEASE_S, SeenKeys

KEYS = [BlockKey.of(b"n" * 16, bytes([number]) * 32) for number in range(5)]


@pytest.fixture
def seen() -> SeenKeys:
    return SeenKeys()


def test_a_key_is_believed_to_be_there_for_less_than_the_store_keeps_it_anyway(seen: SeenKeys) -> None:
    seen.saw(KEYS[0], 10, now_s=100.0)

    assert seen.believed(KEYS[0], 100.0)
    assert seen.believed(KEYS[0], 100.0 + BELIEVED_S - 0.01)
    assert not seen.believed(KEYS[0], 100.0 + BELIEVED_S)
    assert BELIEVED_S < LEASE_S


def test_a_key_that_was_only_put_is_counted_and_asked_for_nevertheless(seen: SeenKeys) -> None:
    seen.stored(KEYS[0], 10)

    assert not seen.believed(KEYS[0], 1.0)
    assert (len(seen), seen.bytes) == (1, 10)


def test_of_a_key_that_nobody_spoke_of_or_that_is_gone_nothing_is_believed(seen: SeenKeys) -> None:
    assert not seen.believed(KEYS[0], 1.0)
    seen.saw(KEYS[0], 10, now_s=1.0)
    seen.gone(KEYS[0])
    assert not seen.believed(KEYS[0], 1.0)


def test_sizes_add_up_and_are_not_lost_when_only_the_presence_is_heard_of_again(seen: SeenKeys) -> None:
    seen.saw(KEYS[0], 10, now_s=1.0)
    seen.saw(KEYS[1], 20, now_s=1.0)
    seen.saw(KEYS[0], 0, now_s=2.0)
    seen.saw(KEYS[2], 0, now_s=2.0)

    assert (len(seen), seen.bytes) == (3, 30)
    assert seen.gone(KEYS[0]) == 10
    assert seen.gone(KEYS[4]) == 0
    assert (len(seen), seen.bytes) == (2, 20)
    assert repr(seen) == "SeenKeys(2 keys, 20 bytes)"


def test_it_never_remembers_more_than_so_many_and_forgets_the_oldest() -> None:
    seen = SeenKeys(most_keys=2)
    for key in KEYS[:2]:
        seen.saw(key, 10, now_s=1.0)
    seen.saw(KEYS[0], 10, now_s=1.0)
    seen.saw(KEYS[2], 10, now_s=1.0)

    assert [seen.believed(key, 1.0) for key in KEYS[:3]] == [True, False, True]
    assert seen.bytes == 20


def test_after_a_restart_of_the_store_nothing_is_believed(seen: SeenKeys) -> None:
    seen.saw(KEYS[0], 10, now_s=1.0)
    seen.forget_all()

    assert not seen.believed(KEYS[0], 1.0)
    assert (len(seen), seen.bytes) == (0, 0)
