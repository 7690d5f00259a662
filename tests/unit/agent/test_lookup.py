import pytest

from kveik.agent.lookup import KEYS_MAX, located, lookup_keys
from kveik.agent.protocol import Lookup, PartlyThere
from kveik.errors import ProtocolError
from kveik.kv.keys import BlockKey

HASHES = [bytes([number]) * 32 for number in range(4)]


def lookup(ranks: list[int], *parts: tuple[int, list[bytes]]) -> Lookup:
    return Lookup(1, b"n" * 16, ranks, list(parts), 0.05)


def test_keys_come_by_part_then_rank_then_hash() -> None:
    keys = lookup_keys(lookup([0, 5], (0, HASHES[:2]), (3, HASHES[2:3])))
    assert keys == [
        BlockKey.of(b"n" * 16, block_hash, group, rank)
        for group, rank, block_hash in [
            (0, 0, HASHES[0]), (0, 0, HASHES[1]), (0, 5, HASHES[0]), (0, 5, HASHES[1]),
            (3, 0, HASHES[2]), (3, 5, HASHES[2]),
        ]
    ]  # fmt: skip


def test_a_block_is_there_only_if_all_ranks_have_it_and_as_slow_as_the_slowest() -> None:
    request = lookup([0, 1], (0, HASHES[:3]), (1, HASHES[3:]))
    places = bytearray([1, 1, 2, 3, 0, 2, 1, 1])
    assert located(request, places).places == [bytes([3, 0, 2]), bytes([1])]


def test_one_rank_gives_its_own_places() -> None:
    assert located(lookup([2], (0, HASHES)), bytearray([1, 0, 2, 1])).places == [bytes([1, 0, 2, 1])]


def test_no_ranks_and_no_hashes_give_empty_answers() -> None:
    assert located(lookup([0], (0, [])), bytearray()).places == [b""]
    assert lookup_keys(lookup([], (0, HASHES))) == []


@pytest.mark.parametrize(
    "request_",
    [
        lookup([0], (0, [b"short"])),
        lookup([70_000], (0, HASHES)),
        lookup([0], (-1, HASHES)),
        Lookup(1, b"short", [0], [(0, HASHES)], 0.05),
        lookup(list(range(65_536)), (0, HASHES * (KEYS_MAX // 65_536))),
    ],
)
def test_what_no_client_sends_is_refused(request_: Lookup) -> None:
    with pytest.raises(ProtocolError):
        lookup_keys(request_)


def test_the_first_absent_block_of_a_part_is_told_if_only_some_ranks_lack_it() -> None:
    request = lookup([0, 4], (0, HASHES[:2]), (1, HASHES[2:3]), (2, HASHES[3:]))
    places = bytearray([1, 1, 1, 0, 0, 0, 1, 1])
    assert located(request, places).partly == [PartlyThere(0, 1, [4])]
