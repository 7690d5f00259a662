"""What a node makes of another's blocks: there, old, never seen, wrong, or two agents of one name."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kveik.store.roll_call import NAMES, Entry
from kveik.store.roll_call_verdict import OVERDUE_PERIODS, Presence, Sight, patience_s

RENEW_S = 45.0
START = Sight("n1", 100.0, RENEW_S)
LONG_S = patience_s(RENEW_S)


def block(number: int, nonce: str = "a", at_s: float = 5_000.0) -> Entry:
    return Entry("f", "n1", "machine", nonce, number, at_s, RENEW_S)


def seen(number: int = 3, now_s: float = 110.0) -> Sight:
    return START.read(block(number), now_s, 5_002.0)


def test_a_node_whose_block_was_just_read_is_here() -> None:
    assert seen().presence(111.0) is Presence.HERE
    assert seen().age_s(111.0) == 1.0
    assert seen().clock_s == 2.0
    assert "new 1 s ago" in seen().told(111.0)


def test_a_block_that_is_read_again_and_again_grows_old_until_there_is_a_newer_one() -> None:
    sight = seen()
    again = sight.read(block(3), 110.0 + LONG_S + 1, 5_200.0)
    assert again.presence(110.0 + LONG_S + 1) is Presence.OLD
    assert "expected each 45 s" in again.told(110.0 + LONG_S + 1)
    newer = again.read(block(4), 300.0, 5_200.0)
    assert newer.presence(301.0) is Presence.HERE


def test_an_older_block_tells_nothing() -> None:
    assert seen(3).read(block(2), 200.0, 5_100.0) == seen(3)


def test_an_agent_that_began_anew_is_seen_when_the_old_life_is_overdue_and_its_leftovers_never_again() -> None:
    soon, later_s = 120.0, 110.0 + OVERDUE_PERIODS * RENEW_S + 1
    assert seen(9).read(block(1, "b"), soon, 6_001.0) == seen(9)
    anew = seen(9).read(block(1, "b", at_s=1_000.0), later_s, 6_001.0)
    assert anew.entry == block(1, "b", at_s=1_000.0), "whatever its clock says"
    assert anew.presence(later_s) is Presence.HERE
    much_later_s = later_s + LONG_S + 1
    assert anew.read(block(9), much_later_s, 7_000.0).presence(much_later_s) is Presence.OLD


def test_who_was_never_seen_is_waited_for_and_then_missed() -> None:
    assert START.missed().presence(101.0) is Presence.WAITING
    assert START.missed().presence(101.0 + LONG_S) is Presence.NEVER
    assert "another store" in START.told(101.0 + LONG_S)
    assert START.age_s(500.0) is None


def test_a_tier_that_does_not_answer_tells_nothing_of_who_is_there() -> None:
    refused = START.refused_for("no route")
    assert refused.presence(1_000.0) is Presence.NO_ANSWER
    assert "no route" in refused.told(1_000.0)
    assert refused.missed().presence(1_000.0) is Presence.NEVER
    assert seen().refused_for("no route").presence(111.0) is Presence.HERE
    assert seen().refused_for("no route").presence(111.0 + LONG_S) is Presence.NO_ANSWER


def test_other_bytes_stand_until_a_new_block_is_right() -> None:
    wrong = seen().misread("payload checksum differs")
    assert wrong.presence(111.0) is Presence.OTHER_BYTES
    assert wrong.missed().read(block(3), 112.0, 5_003.0).presence(112.0) is Presence.OTHER_BYTES
    assert "checksum" in wrong.told(111.0)
    assert wrong.read(block(4), 112.0, 5_003.0).presence(112.0) is Presence.HERE


def test_leftovers_under_the_own_name_are_no_twin_but_blocks_that_go_on_are() -> None:
    own = seen().met(block(7, "z"))
    assert own.presence(111.0) is Presence.HERE
    assert own.met(block(7, "z")).presence(111.0) is Presence.HERE
    assert own.met(block(8, "y")).presence(111.0) is Presence.HERE
    twin = own.met(block(8, "z"))
    assert twin.presence(111.0) is Presence.TWIN
    assert "host machine" in twin.told(111.0)
    assert twin.alone().presence(111.0) is Presence.HERE
    assert twin.met(block(8, "z")).presence(111.0) is Presence.HERE, "it has ended, and left its last one"


def test_all_names_are_looked_under_until_one_is_known_and_when_it_is_overdue() -> None:
    assert START.wanted(100.0) == range(NAMES)
    assert list(seen(3).wanted(111.0)) == [4, 5]
    assert seen(3).wanted(111.0 + OVERDUE_PERIODS * RENEW_S) == range(NAMES)


def test_plain_values_are_for_stats() -> None:
    assert seen().plain(111.0) == {
        "node": "n1", "presence": "here", "age_s": 1.0, "clock_s": 2.0,
        "told": "its block is there and right, new 1 s ago",
    }  # fmt: skip
    assert START.plain(101.0)["age_s"] is None
    assert all(replace(START, refused=text).plain(1_000.0)["told"] for text in ("", "why"))


#: What may happen to a node's block in a round: it is newer, the same, gone, wrong, or the tier does not answer.
HAPPENINGS = st.lists(
    st.tuples(st.sampled_from(["newer", "same", "gone", "wrong", "refused", "anew"]), st.floats(0.0, 400.0)),
    max_size=30,
)


@given(HAPPENINGS)
def test_a_node_is_here_only_after_a_new_block_in_time_and_never_with_wrong_bytes_since(
    happenings: list[tuple[str, float]],
) -> None:
    sight, now_s, number, life = START, 100.0, 0, 0
    new_s: float | None = None
    wrong = False
    for what, passed_s in happenings:
        now_s += passed_s
        if what == "anew" and new_s is not None and now_s - new_s <= OVERDUE_PERIODS * RENEW_S:
            assert sight.read(block(0, str(life + 1)), now_s, now_s) == replace(sight, refused=""), "too early to say"
        elif what in {"newer", "anew"}:
            number, life = (number + 1, life) if what == "newer" else (0, life + 1)
            sight = sight.read(block(number, str(life), at_s=-now_s), now_s, now_s)
            new_s, wrong = now_s, False
        elif what == "same" and new_s is not None:
            sight = sight.read(block(number, str(life)), now_s, now_s)
        elif what == "wrong":
            sight, wrong = sight.misread("checksum"), True
        else:
            sight = sight.missed() if what == "gone" else sight.refused_for("no route")
        fresh = new_s is not None and now_s - new_s <= LONG_S
        assert (sight.presence(now_s) is Presence.HERE) is (fresh and not wrong)
        assert (sight.presence(now_s) is Presence.OTHER_BYTES) is wrong
        assert sight.told(now_s)
        assert sight.wanted(now_s)
        assert (sight.age_s(now_s) is None) is (new_s is None)
