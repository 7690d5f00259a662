"""Engines of one model are compared by what their block hashes depend on, and the odd one is named."""

import hashlib
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from kveik.doctor.check import Outcome, Point
from kveik.doctor.fleet_hashes import HashFacts, judge_hashes, odd_ones, seed_in_words


def facts(engine: str, **given: str) -> HashFacts:
    usual = {"algorithm": "sha256", "block_tokens": "128", "hash_tokens": "128", "seed": "PYTHONHASHSEED=0"}
    return HashFacts(engine, **{**usual, **given})  # type: ignore[arg-type]


def wrong(points: list[Point]) -> dict[str, str]:
    return {point.about: point.told for point in points if point.outcome is Outcome.WRONG}


def digest(seed: str) -> str:
    return hashlib.sha256(seed.encode()).hexdigest()[:16]


def test_engines_that_are_alike_are_well() -> None:
    points = judge_hashes(
        "m", [facts("a", first_hash="1f", namespace="aa"), facts("b", first_hash="1f", namespace="aa")]
    )
    assert {point.outcome for point in points} == {Outcome.WELL}
    assert len(points) == 6


def test_another_seed_is_wrong_and_named_with_the_engine_and_the_value() -> None:
    points = judge_hashes("m", [facts("a"), facts("b", seed="PYTHONHASHSEED=1"), facts("c")])
    assert wrong(points) == {"hash seed of m": "b has PYTHONHASHSEED=1; a, c have PYTHONHASHSEED=0"}
    (point,) = (point for point in points if point.outcome is Outcome.WRONG)
    assert "same PYTHONHASHSEED" in point.remedy


def test_an_engine_without_a_seed_among_others_is_wrong() -> None:
    unset = seed_in_words({"PATH": "/bin"}, "", "sha256")
    assert wrong(judge_hashes("m", [facts("a"), facts("b", seed=unset)])) == {
        "hash seed of m": "b has PYTHONHASHSEED is not set; a has PYTHONHASHSEED=0"
    }


def test_a_random_seed_is_wrong_even_where_all_have_it() -> None:
    seed = seed_in_words({}, "", "xxhash_cbor")
    told = wrong(judge_hashes("m", [facts("a", seed=seed), facts("b", seed=seed)]))
    assert "a, b: block hashes start from a number that is random" in told["hash seed of m"]


def test_another_algorithm_and_other_block_sizes_are_wrong() -> None:
    told = wrong(
        judge_hashes("m", [facts("a"), facts("b", algorithm="sha256_cbor", block_tokens="64", hash_tokens="32")])
    )
    assert set(told) == {"hash algorithm of m", "block size of m", "hash block size of m"}
    assert told["block size of m"] == "b has 64; a has 128"


def test_hashes_of_one_prompt_that_differ_are_the_proof() -> None:
    told = wrong(judge_hashes("m", [facts("a", first_hash="1f", seed=""), facts("b", first_hash="2e", seed="")]))
    assert told == {"block hashes of m": "one prompt got several hashes: b has 2e; a has 1f"}


def test_what_cannot_be_seen_is_unknown_and_never_well() -> None:
    points = judge_hashes("m", [facts("a"), facts("far", seed="")])
    (unknown,) = (point for point in points if point.outcome is Outcome.UNKNOWN)
    assert unknown.about == "hash seed of m"
    assert "far: it cannot be seen from here" in unknown.told
    silent = judge_hashes("m", [HashFacts("a"), HashFacts("b")])
    assert {point.outcome for point in silent} == {Outcome.UNKNOWN}


def test_namespaces_that_differ_are_told_by_their_facts() -> None:
    mine = HashFacts("a", namespace="aa", namespace_facts={"dtype": "float32", "hash_seed": "x"})
    other = HashFacts("b", namespace="bb", namespace_facts={"dtype": "bfloat16", "hash_seed": "x"})
    told = wrong(judge_hashes("m", [mine, other]))
    assert told == {"namespace of m": "not the one of a: b: dtype bfloat16, there float32"}
    seeds = [replace(one, namespace_facts={"hash_seed": digest(seed)}) for one, seed in ((mine, "0"), (other, "1"))]
    told = wrong(judge_hashes("m", seeds))
    assert told["namespace of m"].endswith("b: hash_seed (PYTHONHASHSEED=1), there (PYTHONHASHSEED=0)")
    hidden = wrong(judge_hashes("m", [mine, HashFacts("b", namespace="bb")]))
    assert "why is not known on this machine" in hidden["namespace of m"]


def test_a_seed_is_known_by_the_digest_that_a_namespace_has() -> None:
    assert seed_in_words(None, digest("0"), "sha256") == "PYTHONHASHSEED=0"
    assert seed_in_words(None, digest("vllm-none-hash"), "sha256") == "PYTHONHASHSEED is not set"
    assert seed_in_words(None, digest("a long secret"), "sha256").startswith("a seed of digest ")
    assert seed_in_words(None, "", "sha256") == ""


def test_the_environment_counts_more_than_the_digest() -> None:
    assert seed_in_words({"PYTHONHASHSEED": "7"}, digest("0"), "sha256") == "PYTHONHASHSEED=7"


def test_of_a_tie_the_first_value_is_the_usual_one() -> None:
    odd = odd_ones({"a": "1", "b": "2"})
    assert odd is not None
    assert odd.usual == "1"
    assert odd_ones({"a": "1", "b": "1"}) is None


FIELDS = ("algorithm", "block_tokens", "hash_tokens", "seed", "first_hash", "namespace")
SOME_FACTS = st.builds(HashFacts, st.just("?"), **{name: st.sampled_from(["", "1", "2"]) for name in FIELDS})


@given(st.lists(SOME_FACTS, min_size=1, max_size=5))
def test_whatever_engines_tell_a_difference_is_wrong_and_names_an_engine_and_nothing_else_is(
    told: list[HashFacts],
) -> None:
    engines = [replace(one, engine=f"engine-{number}") for number, one in enumerate(told)]
    found = judge_hashes("m", engines)
    assert found
    differing = {name for name in FIELDS if len({getattr(one, name) for one in engines} - {""}) > 1}
    assert len(wrong(found)) == len(differing)
    for text in wrong(found).values():
        assert "engine-" in text


@given(st.lists(SOME_FACTS, min_size=1, max_size=5))
def test_what_nobody_tells_is_never_called_well(told: list[HashFacts]) -> None:
    engines = [replace(one, engine=f"engine-{number}", seed="") for number, one in enumerate(told)]
    seeds = [point for point in judge_hashes("m", engines) if point.about == "hash seed of m"]
    assert {point.outcome for point in seeds} == {Outcome.UNKNOWN}
