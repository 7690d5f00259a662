"""What connectors tell of lookups and loads in their engine's log alone."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.diagnose.cache_log import LogEvidence, Share, read_evidence

_ASCEND = "(EngineCore pid=7) DEBUG 11-30 01:00:22 [pool_worker.py:2259] KV pool coordinator lookup"
ASCEND = [
    f"{_ASCEND} group=0 token_len=50048 keys=96 exists_chunks=96/96 sample_keys=['a']",
    f"{_ASCEND} group=1 token_len=50048 keys=386 exists_chunks=5/386 sample_keys=['b']",
    f"{_ASCEND} final token_len=50048 groups=[0, 1] hit=0",
]
SCHEDULER = "KV pool scheduler lookup final token_len=9 groups=[0] hits=[0] result=0"


def test_the_field_reports_lines_are_understood() -> None:
    seen = read_evidence(ASCEND)
    assert [str(share) for share in seen.exists] == ["96/96", "5/386"]
    assert seen.exist_blocks == 101
    assert seen.hit_tokens == 0
    assert len(seen.lines) == 3
    assert seen.lines[0].startswith("KV pool coordinator lookup group=0")


@pytest.mark.parametrize(
    "line", ["final hit=0", "KV pool scheduler lookup final token_len=9 groups=[0] hits=[0] result=0"]
)
def test_other_forms_of_the_last_word_are_understood(line: str) -> None:
    assert read_evidence([line]).hit_tokens == 0


def test_a_connector_of_the_pools_says_what_it_will_load() -> None:
    line = "INFO 11-30 01:00:22 [s.py:514] Reqid: a, Total tokens 900, kvpool hit tokens: 768, need to load: 640"
    seen = read_evidence([line])
    assert (seen.hit_tokens, seen.need_tokens, seen.too_short_to_load) == (768, 640, False)


def test_lmcache_tells_what_it_stored_found_and_loaded() -> None:
    seen = read_evidence(
        [
            "LMCache INFO: [req_id=a] Stored 256 out of total 300 tokens. size: 0.1 GB, cost 1 ms",
            "LMCache INFO: [req_id=a] Stored 512 out of total 512 tokens. size: 0.1 GB, cost 1 ms",
            "LMCache INFO: Reqid: a, Inference Engine computed tokens: 0, LMCache hit tokens: 768, need to load: 768",
            "LMCache INFO: [req_id=a] Retrieved 768 out of 768 required tokens (from 900 total tokens). size: 0.1 gb",
        ]
    )
    assert seen.stored == Share(812, 768)
    assert (seen.hit_tokens, seen.need_tokens) == (768, 768)
    assert seen.loaded == Share(768, 768)


def test_lmcaches_server_tells_it_too() -> None:
    seen = read_evidence(["Stored 512 tokens in 0.010 seconds", "Retrieved 256 tokens in 0.002 seconds"])
    assert (seen.stored, seen.loaded) == (Share(512, 512), Share(256, 256))


def test_a_least_length_of_loads_is_told_apart() -> None:
    line = (
        "Reqid: a, Total tokens 300, Inference Engine computed tokens: 0, LMCache hit tokens: 256, "
        "but need to load: 256 < min_retrieve 512, skip retrieve but record for save skip"
    )
    assert read_evidence([line]).too_short_to_load


def test_vllms_own_offloading_tells_its_hit() -> None:
    line = "DEBUG 11-30 01:00:22 [scheduler.py:946] Request a hit 640 offloaded tokens after 0 GPU hit tokens"
    assert read_evidence([line]).hit_tokens == 640


def test_lines_about_other_things_say_nothing() -> None:
    lines = ["INFO 11-30 01:00:22 [core.py:133] Engine started", "", "Stored procedures exist", "exists"]
    assert read_evidence(lines) == LogEvidence()


def test_only_the_first_lines_are_kept() -> None:
    assert len(read_evidence(["final hit=0"] * 50).lines) == 8


def test_a_collectors_prefix_and_colours_do_not_matter() -> None:
    coloured = f"engine-1  | \x1b[0;36m{_ASCEND} final token_len=50048 groups=[0] hit=12288\x1b[0m"
    assert read_evidence([coloured]).hit_tokens == 12288


def test_the_last_lookup_counts_and_groups_add_up() -> None:
    seen = read_evidence([f"{_ASCEND} final token_len=9 groups=[0] hit={hit}" for hit in (0, 64, 128)])
    assert seen.hit_tokens == 128
    assert read_evidence(ASCEND[:2] * 2).exist_blocks == 202


def test_what_is_quoted_is_cut() -> None:
    seen = read_evidence([f"{ASCEND[0]} {'x' * 5000}"])
    assert len(seen.lines[0]) == 200


@given(st.lists(st.text(max_size=200), max_size=20))
def test_no_text_whatever_breaks_it(lines: list[str]) -> None:
    seen = read_evidence(lines)
    assert len(seen.lines) <= 8
    assert seen.exist_blocks >= 0
