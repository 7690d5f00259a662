"""The log of a tier's outages: begin, end, why, and what they cost."""

from kveik.store.outages import KEPT, OutageLog

BEGIN_S = 1_790_000_000.0


def test_an_outage_has_a_begin_an_end_and_a_cost() -> None:
    log = OutageLog("redis").began("connection refused", BEGIN_S)
    log = log.cost(not_stored=3).cost(not_read=2, not_stored=1).lost(1800).ended(BEGIN_S + 95)

    (outage,) = log.outages
    assert (outage.not_stored_blocks, outage.not_read_blocks, outage.lost_keys) == (4, 2, 1800)
    assert outage.duration_s == 95
    assert outage.text == (
        "redis tier out from 2026-09-21 14:13:20 to 2026-09-21 14:14:55 (1 min 35 s): connection refused; "
        "4 blocks not stored, 2 not read, about 1800 keys lost"
    )


def test_one_that_lasts_says_since_when() -> None:
    log = OutageLog("redis").began("hung", BEGIN_S)
    assert log.current is not None
    assert log.current.text == "redis tier out since 2026-09-21 14:13:20: hung; 0 blocks not stored, 0 not read"
    assert log.current.duration_s == 0.0


def test_the_first_reason_of_an_outage_stands() -> None:
    log = OutageLog("redis").began("hung", 1.0).began("refused", 2.0)
    assert [outage.why for outage in log.outages] == ["hung"]


def test_without_an_outage_nothing_is_counted_or_ended() -> None:
    log = OutageLog("redis")
    assert log.cost(not_stored=5).lost(5).ended(1.0) == log
    ended = log.began("hung", 1.0).ended(2.0)
    assert ended.cost(not_read=5).lost(5).ended(9.0) == ended


def test_only_the_last_ones_are_kept() -> None:
    log = OutageLog("redis")
    for number in range(KEPT + 5):
        log = log.began(str(number), 2.0 * number).ended(2.0 * number + 1)
    assert len(log.outages) == KEPT
    assert log.outages[-1].why == str(KEPT + 4)


def test_the_state_is_plain_and_newest_first() -> None:
    log = OutageLog("redis").began("a", 1.0).ended(2.0).began("b", 3.0)
    newest, oldest = log.state()
    assert (newest["why"], newest["end_s"], oldest["why"], oldest["end_s"]) == ("b", None, "a", 2.0)
    assert "redis tier out since" in str(newest["text"])


def test_long_outages_are_told_in_hours() -> None:
    (outage,) = OutageLog("redis").began("away", 0.0).ended(7260.0).outages
    assert "(2 h 1 min)" in outage.text
    assert "(0.5 s)" in OutageLog("redis").began("away", 0.0).ended(0.5).outages[0].text
