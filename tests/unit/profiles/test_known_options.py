"""What a name on a line stands for: as vLLM's parser takes it, or what was probably meant."""

import pytest

from kveik.profiles.known_options import PLUGIN_CONNECTORS, Known, committed, of_document
from kveik.profiles.line_finding import Given, value, version_key, whole

SMALL = Known(
    "1.0", {"--max-model-len": {}, "--max-num-seqs": {}, "--model": {}, "-tp": {}}, {"VLLM_LOGGING_LEVEL"}, set()
)


@pytest.mark.parametrize(
    ("given", "found"),
    [
        ("--max-model-len", "--max-model-len"),
        ("--max_model_len", "--max-model-len"),
        ("--max-num_seqs", "--max-num-seqs"),
        ("--max-n", "--max-num-seqs"),
        ("--max", ""),
        ("--mo", "--model"),
        ("-tp", "-tp"),
        ("-t", ""),
        ("--other", ""),
    ],
)
def test_a_name_is_found_as_the_parser_would(given: str, found: str) -> None:
    assert SMALL.find(given) == found


def test_a_whole_name_is_itself_though_others_begin_so() -> None:
    known = Known("1", {"--seed": {}, "--seed-more": {}}, set(), set())
    assert known.find("--seed") == "--seed"


def test_a_slip_of_the_finger_finds_what_was_meant() -> None:
    assert SMALL.nearest("--max-model-length") == "--max-model-len"
    assert SMALL.nearest("--max_num_seq") == "--max-num-seqs"
    assert SMALL.nearest("--something-else-entirely") == ""
    assert SMALL.nearest_variable("VLLM_LOGGIN_LEVEL") == "VLLM_LOGGING_LEVEL"
    assert SMALL.nearest_variable("HOME") == ""


def test_the_committed_table_is_of_the_pinned_vllm() -> None:
    known = committed()
    assert known.version == "0.32.0"
    assert len(known.options) > 400
    assert "MooncakeStoreConnector" in known.connectors
    assert set(known.connectors) >= PLUGIN_CONNECTORS
    assert known.options["--enforce-eager"]["takes"] == 0
    assert "bfloat16" in known.options["--dtype"]["choices"]


def test_a_document_of_another_vllm_is_read() -> None:
    known = of_document({"version": "9", "options": {"--x": {}}, "environment": ["VLLM_X"], "connectors": ["Mine"]})
    assert known.find("--x") == "--x"
    assert {"Mine", "UCMConnector"} <= set(known.connectors)


@pytest.mark.parametrize(
    ("older", "newer"),
    [
        ("0.26.0rc1", "0.27.1rc1"),
        ("0.27.1rc1", "0.27.1"),
        ("0.30.0rc1", "0.30.0rc2"),
        ("0.30.0rc2", "0.30.0"),
        ("0.9.1", "0.11.0"),
        ("v0.18.0", "0.19"),
    ],
)
def test_versions_are_in_order(older: str, newer: str) -> None:
    assert version_key(older) < version_key(newer)


def test_the_last_value_holds() -> None:
    given: Given = {"seed": [("--seed", ["1"]), ("--seed", ["2"])], "flag": [("--flag", [])]}
    assert value(given, "seed") == "2"
    assert value(given, "flag") == ""
    assert value(given, "none") == ""


@pytest.mark.parametrize(
    ("text", "number"),
    [("8", 8), ("4k", 4000), ("4K", 4096), ("1m", 1_000_000), ("1M", 1 << 20), ("x", None), ("-1", None)],
)
def test_numbers_may_have_a_unit(text: str, number: int | None) -> None:
    assert whole({"n": [("--n", [text])]}, "n") == number
