"""The committed table is what the real parser knows, and a real parser can be asked about a line."""

import json
import sys
from typing import Any

import pytest

from kveik.connector.vllm_options import known, parser, refusal
from kveik.profiles.known_options import committed
from kveik.profiles.line_check import check_text
from kveik.profiles.real_parser import ask_real_parser
from vllm_options import TABLE, text


@pytest.fixture(scope="module")
def real() -> Any:
    return parser()


def test_the_table_is_what_vllm_takes(real: Any) -> None:
    found = known(real)
    # Others may have registered connectors in this process.
    found["connectors"] = [name for name in found["connectors"] if name in json.loads(TABLE.read_text())["connectors"]]
    assert text(found) == TABLE.read_text(encoding="utf8"), "run scripts/vllm_options.py with the Python that has vLLM"


@pytest.mark.parametrize(
    "given",
    [
        ["--enable-metrics"],
        ["--max-paddings", "512"],
        ["--preemption-mode", "recompute"],
        ["--reserved-memory", "0.8"],
        ["--swap-space", "4"],
        ["--dtype", "fp16"],
        ["--max-num_seqs", "8"],
        ["--enable-prefix-c"],
        ["--kv-transfer-config", '{"kv_connector":"OffloadingConnector","kv_role":"kv_both"}'],
        ["-tp", "2"],
        ["--compilation-config.cudagraph_mode", "FULL"],
        ["--collect-detailed-traces", "model", "worker", "--port", "1"],
    ],
    ids=" ".join,
)
def test_the_table_and_the_parser_agree_on_a_line(real: Any, given: list[str]) -> None:
    line = "vllm serve /m " + " ".join(f"'{word}'" for word in given)
    assert check_text(line, "0.30.0").fits == (refusal(real, ["/m", *given]) == "")


def test_the_parser_of_another_python_is_asked() -> None:
    report = check_text("vllm serve /m --swap-space 4 --port 70000000000x", "0.30.0")
    asked = ask_real_parser(report, sys.executable)
    assert f"vLLM {committed().version}" in asked.judged_by
    assert sys.executable in asked.judged_by
    assert [finding.name for finding in asked.findings] == ["--swap-space", "vllm serve"]
    assert "--port" in asked.findings[-1].told
