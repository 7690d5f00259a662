"""Earlier requests that are like one."""

from kveik.diagnose.funnel_twin import earlier, most_alike, with_same_beginning
from tests.funnels import prompt, told

ASKED = told("asked", prompt(700), 50.0)


def test_only_earlier_requests_that_can_be_compared_count_the_latest_first() -> None:
    others = [
        told("first", prompt(300), 10.0),
        told("later", prompt(300), 60.0),
        told("no prints", prompt(300), 20.0, prints=b""),
        told("second", prompt(300), 30.0),
        ASKED,
    ]
    assert [other.began_s for other in earlier(ASKED, others)] == [30.0, 10.0]


def test_the_longest_same_beginning_wins_and_the_latest_of_equals() -> None:
    short, long = told("short", prompt(160), 40.0), told("long", prompt(400), 30.0)
    older = told("older", prompt(400), 20.0)
    twin = with_same_beginning(ASKED, [short, long, older])
    assert twin is not None
    assert (twin.record, twin.leading_tokens) == (long, 400)
    assert with_same_beginning(ASKED, [told("other", prompt(700, seed=3), 10.0)]) is None


def test_a_prompt_with_another_beginning_is_alike_if_most_of_the_rest_is_the_same() -> None:
    changed = told("changed", [9, *prompt(700)[1:]], 40.0)
    twin = most_alike(ASKED, [changed])
    assert twin is not None
    assert (twin.leading_tokens, twin.differs_in) == (0, (0, 16))
    assert 0.9 < twin.alike < 1.0


def test_prompts_with_little_in_common_are_not_alike() -> None:
    quarter = told("quarter", [*prompt(175), *prompt(525, seed=4)], 40.0)
    assert most_alike(ASKED, [quarter]) is None
    short = told("short", prompt(48), 60.0)
    assert most_alike(short, [told("same", prompt(48), 50.0)]) is None, "three chunks prove nothing"


def test_the_place_of_the_first_difference_is_told_in_tokens() -> None:
    changed = told("changed", [*prompt(300), 9, *prompt(700)[301:]], 40.0)
    twin = with_same_beginning(ASKED, [changed])
    assert twin is not None
    assert twin.differs_in == (288, 304)
