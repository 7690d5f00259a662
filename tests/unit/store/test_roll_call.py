"""The block by which an agent shows that it is there: every node derives its names, and its bytes prove themselves."""

import pytest

from kveik.kv import frame
from kveik.kv.frame import seal
from kveik.store.canary import PROBE_NAMESPACE
from kveik.store.roll_call import NAMES, PAYLOAD_BYTES, TEXT_MAX, Entry, Roster, empty, read, sealed

ROSTER = Roster("f", "n0", ("n0", "n1"))
ENTRY = ROSTER.entry("host", "ab12", 7, 1_000.0, 45.0)
KEY = ROSTER.key("n0", 7)


def test_every_node_derives_the_same_names_of_a_node() -> None:
    other = Roster("f", "n1", ("n1", "n0", "n2"))
    assert [other.key("n0", number) for number in range(NAMES)] == [ROSTER.key("n0", n) for n in range(NAMES)]


def test_names_differ_by_fleet_node_and_number_and_come_round_again() -> None:
    keys = [ROSTER.key("n0", 7), ROSTER.key("n1", 7), ROSTER.key("n0", 8), Roster("g", "n0", ("n0",)).key("n0", 7)]
    assert len(set(keys)) == 4
    assert ROSTER.key("n0", 7 + NAMES) == KEY


def test_it_lies_among_the_probes_so_that_nothing_counts_it_as_a_block_of_a_model() -> None:
    assert KEY.namespace == PROBE_NAMESPACE


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [("n0,n1", ("n0", "n1")), (" n1 , n0 ,", ("n1", "n0")), ("", ("n0",)), ("n1,n1", ("n1", "n0"))],
)
def test_a_roster_has_each_node_once_and_always_its_own(nodes: str, expected: tuple[str, ...]) -> None:
    roster = Roster.of("f", "n0", nodes)
    assert roster.nodes == expected
    assert roster.others == tuple(name for name in expected if name != "n0")


def test_what_is_sealed_is_read_again() -> None:
    assert read(sealed(KEY, ENTRY), KEY) == ENTRY


def test_long_names_fit() -> None:
    roster = Roster("f" * 5000, "n\N{SNOWMAN}" * 5000, ())
    entry = roster.entry("h" * 5000, "ab", 1 << 40, 1e9, 3600.0)
    assert read(sealed(KEY, entry), KEY) == entry
    assert len(entry.node) == TEXT_MAX


def test_a_flipped_bit_another_key_and_an_empty_buffer_are_no_block() -> None:
    flipped = sealed(KEY, ENTRY)
    flipped[frame.HEADER_BYTES + 3] ^= 1
    for buffer, key in ((flipped, KEY), (sealed(KEY, ENTRY), ROSTER.key("n1", 7)), (empty(), KEY)):
        assert isinstance(read(buffer, key), str)


@pytest.mark.parametrize("text", [b"", b"{}", b"\xff\xfe", b'{"fleet": 1}', b"[]"])
def test_a_sound_frame_that_says_something_else_is_no_block_either(text: bytes) -> None:
    buffer = empty()
    buffer[frame.HEADER_BYTES : frame.HEADER_BYTES + len(text)] = text
    seal(buffer, KEY, PAYLOAD_BYTES, 1.0)
    found = read(buffer, KEY)
    assert isinstance(found, str)
    assert "another version" in found


def test_a_newer_version_may_say_more() -> None:
    buffer = empty()
    text = b'{"fleet":"f","node":"n0","host":"h","nonce":"a","number":1,"at_s":1.0,"renew_s":2.0,"more":[1]}'
    buffer[frame.HEADER_BYTES : frame.HEADER_BYTES + len(text)] = text
    seal(buffer, KEY, PAYLOAD_BYTES, 1.0)
    assert read(buffer, KEY) == Entry("f", "n0", "h", "a", 1, 1.0, 2.0)
