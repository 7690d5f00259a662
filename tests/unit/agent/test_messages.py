"""Every message of the protocol survives the wire, and its limits hold for every one."""

import socket
import typing

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.agent import protocol, wire
from kveik.agent.lookup import KEYS_MAX, located, lookup_keys
from kveik.agent.protocol import Answer, Done, EngineRates, Hello, Located, Lookup, Request, TierRate
from kveik.errors import ProtocolError
from kveik.kv.keys import BlockKey

REQUESTS: list[type[protocol.Message]] = list(typing.get_args(Request))
ANSWERS: list[type[protocol.Message]] = list(typing.get_args(Answer))

FIELD_VALUES: dict[object, st.SearchStrategy[typing.Any]] = {
    int: st.integers(0, 2**63 - 1),
    float: st.floats(allow_nan=False),
    str: st.text(max_size=30),
    bytes: st.binary(max_size=60),
    bool: st.booleans(),
}


def values_of(kind: object) -> st.SearchStrategy[typing.Any]:
    """Values of one field, from its annotation."""
    if kind in FIELD_VALUES:
        return FIELD_VALUES[kind]
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return messages_of(kind)
    outer, inner = typing.get_origin(kind), typing.get_args(kind)
    if type(None) in inner:
        return st.none() | values_of(inner[0])
    if outer is list:
        return st.lists(values_of(inner[0]), max_size=4)
    if outer is tuple:
        return st.tuples(*map(values_of, inner))
    assert outer is dict, f"the test knows no values for {kind}"
    return st.dictionaries(values_of(inner[0]), values_of(inner[1]), max_size=4)


def messages_of(kind: type[msgspec.Struct]) -> st.SearchStrategy[typing.Any]:
    """Messages of one type with all fields given."""
    hints = typing.get_type_hints(kind)
    return st.builds(kind, **{name: values_of(hints[name]) for name in kind.__struct_fields__})


def name_of(kind: type) -> str:
    return kind.__name__


@pytest.mark.parametrize("kind", REQUESTS, ids=name_of)
@given(data=st.data())
def test_every_request_arrives_as_it_was_sent(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert wire.decode_request(wire.encode(message)[4:]) == message


@pytest.mark.parametrize("kind", ANSWERS, ids=name_of)
@given(data=st.data())
def test_every_answer_arrives_as_it_was_sent(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    message = data.draw(messages_of(kind))
    assert wire.decode_answer(wire.encode(message)[4:]) == message


@pytest.mark.parametrize("kind", [*REQUESTS, *ANSWERS], ids=name_of)
@given(data=st.data())
def test_a_message_cut_short_is_never_taken_for_another_one(kind: type[msgspec.Struct], data: st.DataObject) -> None:
    body = wire.encode(data.draw(messages_of(kind)))[4:]
    cut = data.draw(st.integers(0, len(body) - 1))
    decode = wire.decode_request if kind in REQUESTS else wire.decode_answer
    with pytest.raises(ProtocolError):
        decode(body[:cut])


def test_no_type_is_both_request_and_answer() -> None:
    """A peer that mixes up its role must be noticed by the first message."""
    assert not set(REQUESTS) & set(ANSWERS)


def test_a_hello_of_an_older_client_without_optional_fields_is_understood() -> None:
    body = msgspec.msgpack.encode({"type": "Hello", "id": 1, "version": 1, "role": "tool", "pid": 5})
    assert wire.decode_request(body) == Hello(1, 1, "tool", 5, connection=0, label="", facts={})


@pytest.mark.parametrize(
    "fields",
    [
        {"type": "Lookup", "id": 1, "namespace": "text", "ranks": "all", "parts": [], "deadline_s": 1.0},
        {"type": "Release", "id": 1},
        {"type": "Release", "id": "one", "lease": 1},
        {"type": "Overwrite", "id": 1},
        {"id": 1, "lease": 1},
    ],
    ids=["wrong type", "missing field", "text for a number", "unknown message", "no type"],
)
def test_a_map_that_is_no_message_is_refused(fields: dict[str, object]) -> None:
    with pytest.raises(ProtocolError, match="not a request"):
        wire.decode_request(msgspec.msgpack.encode(fields))


def test_a_message_without_descriptor_is_received_as_one_without() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(wire.encode(Done(3, 4)))
        body, descriptor = wire.receive_with_descriptor(right)
    assert (wire.decode_answer(body), descriptor) == (Done(3, 4), None)


@pytest.mark.parametrize("sent", [b"", b"\1\0"], ids=["nothing", "half a length"])
def test_a_greeting_that_never_comes_is_a_protocol_error(sent: bytes) -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall(sent)
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError, match="ended before a message"):
            wire.receive_with_descriptor(right)


def test_an_announced_body_that_never_comes_is_a_protocol_error() -> None:
    left, right = socket.socketpair()
    with left, right:
        left.sendall((100).to_bytes(4, "little"))
        left.shutdown(socket.SHUT_WR)
        with pytest.raises(ProtocolError, match="ended within a message"):
            wire.receive_body(right)


class TestLookupKeys:
    HASHES: typing.ClassVar = [bytes([number]) * 32 for number in range(3)]

    def lookup(self, ranks: list[int], *counts: int) -> Lookup:
        parts = [(group, self.HASHES[:count]) for group, count in enumerate(counts)]
        return Lookup(9, b"n" * 16, ranks, parts, 1.0)

    def test_keys_are_those_that_writers_use(self) -> None:
        keys = lookup_keys(self.lookup([0, 1], 2, 1))
        expected = [
            BlockKey.of(b"n" * 16, self.HASHES[block], group, rank)
            for group, count in enumerate((2, 1))
            for rank in (0, 1)
            for block in range(count)
        ]
        assert keys == expected

    @given(st.lists(st.integers(0, 3), min_size=1, max_size=3), st.integers(1, 3), st.data())
    def test_a_block_is_there_if_every_rank_has_it_and_as_far_as_the_slowest(
        self, counts: list[int], ranks: int, data: st.DataObject
    ) -> None:
        request = self.lookup(list(range(ranks)), *counts)
        table = {key: data.draw(st.integers(0, 3)) for key in lookup_keys(request)}
        answer = located(request, bytearray(table.values()))
        for group, count in enumerate(counts):
            for block in range(count):
                places = [table[BlockKey.of(b"n" * 16, self.HASHES[block], group, rank)] for rank in range(ranks)]
                assert answer.places[group][block] == (0 if 0 in places else max(places))
        assert (answer.id, [len(part) for part in answer.places]) == (9, counts)

    def test_more_keys_than_are_ever_asked_for_are_refused_before_they_are_built(self) -> None:
        ranks = list(range(KEYS_MAX // 3 + 1))
        with pytest.raises(ProtocolError, match=str(KEYS_MAX)):
            lookup_keys(self.lookup(ranks, 3))

    @pytest.mark.parametrize(
        ("request_", "complaint"),
        [
            (Lookup(1, b"short", [0], [(0, [b"h" * 32])], 1.0), "namespace digest has 5 bytes"),
            (Lookup(1, b"n" * 16, [1 << 16], [(0, [b"h" * 32])], 1.0), "65535"),
            (Lookup(1, b"n" * 16, [0], [(-1, [b"h" * 32])], 1.0), "65535"),
            (Lookup(1, b"n" * 16, [0], [(0, [b"h" * 31])], 1.0), "neither 16 nor 32 bytes"),
        ],
        ids=["namespace", "rank", "group", "hash"],
    )
    def test_parts_of_keys_that_no_engine_has_are_refused_in_words(self, request_: Lookup, complaint: str) -> None:
        with pytest.raises(ProtocolError, match=complaint):
            lookup_keys(request_)


def test_an_engine_of_an_earlier_version_is_understood_and_understands_the_answer() -> None:
    """Fields that came later are left out by the one side and left unread by the other."""
    earlier = {"type": "Lookup", "id": 7, "namespace": b"n" * 16, "ranks": [0], "parts": [], "deadline_s": 0.05}
    assert wire.decode_request(msgspec.msgpack.encode(earlier)) == Lookup(7, b"n" * 16, [0], [], 0.05)
    answer = wire.encode(Located(7, [b"\2"], [TierRate(2, 0.0, 1e-9, 0.1, 3)]))[4:]
    assert msgspec.msgpack.decode(answer, type=EarlierLocated) == EarlierLocated(7, [b"\2"])


def test_an_agent_of_an_earlier_version_understands_a_lookup_and_is_understood() -> None:
    request = wire.encode(Lookup(7, b"n" * 16, [0], [], 0.05, EngineRates(prefill=[1.0, 2.0, 3.0])))[4:]
    assert msgspec.msgpack.decode(request, type=EarlierLookup) == EarlierLookup(7, b"n" * 16, [0], [], 0.05)
    earlier = {"type": "Located", "id": 7, "places": [b"\2"]}
    assert wire.decode_answer(msgspec.msgpack.encode(earlier)) == Located(7, [b"\2"])


class EarlierLookup(msgspec.Struct, tag="Lookup"):
    """The message before rates were told."""

    id: int
    namespace: bytes
    ranks: list[int]
    parts: list[tuple[int, list[bytes]]]
    deadline_s: float


class EarlierLocated(msgspec.Struct, tag="Located"):
    """The same for the answer."""

    id: int
    places: list[bytes]
