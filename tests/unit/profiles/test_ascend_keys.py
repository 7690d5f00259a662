"""A key that vllm-ascend would refuse is told before it does, with the one that was meant."""

import json
from typing import Any

import pytest

from kveik.profiles import catalog
from kveik.profiles.ascend_keys import unknown_keys
from kveik.profiles.line_check import check_text


def told(**document: Any) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.told, finding.instead) for finding in unknown_keys(document)]


@pytest.mark.parametrize(
    ("document", "part", "instead"),
    [
        ({"multistream_overlap_shared_exprt": True}, "no key multistream", "multistream_overlap_shared_expert"),
        ({"enable_cpu_binding": True, "whatever": 1}, "no key whatever", ""),
        ({"ascend_compilation_config": {"enable_npugraph": True}}, "ascend_compilation_config.enable_npugraph",
         "enable_npugraph_ex"),
        ({"torchair_graph_config": {}}, "is gone", "FULL_DECODE_ONLY"),
        ({"enable_view_optimize": False}, "is gone", "torchair_graph_config"),
        ({"enable_multistream_moe": True}, "is gone", "multistream_overlap_shared_expert"),
    ],
    ids=["slip", "unknown", "inner", "torchair", "view", "multistream"],
)  # fmt: skip
def test_a_key_that_would_stop_the_start_is_told(document: dict[str, Any], part: str, instead: str) -> None:
    ((severity, said, better),) = told(**document)
    assert severity == "error"
    assert part in said
    assert instead in better


def test_a_key_that_has_moved_is_only_noted() -> None:
    ((severity, said, better),) = told(enable_balance_scheduling=True)
    assert severity == "note"
    assert "has moved" in said
    assert better == '{"scheduler_config":{"enable_balance_scheduling":...}}'
    assert told(scheduler_config={"enable_balance_scheduling": True}) == []


def test_a_document_of_another_plugin_is_left_alone() -> None:
    assert told(my_plugin={"x": 1}, other=2) == []
    assert told() == []


def test_a_whole_line_is_judged_by_it() -> None:
    line = "vllm serve /m --additional-config '{}'"
    assert check_text(line.format(json.dumps({"enable_flashcom1": True})), "0.30.0").fits is False
    assert check_text(line.format(json.dumps({"enable_balance_scheduling": True})), "0.30.0").fits is True


def test_presets_use_no_key_that_is_unknown_or_has_moved() -> None:
    for name in catalog.names("models"):
        for option, value, _ in catalog.model(name, "ascend").options:
            if option == "--additional-config":
                assert told(**json.loads(value)) == []
