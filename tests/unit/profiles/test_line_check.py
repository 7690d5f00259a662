"""What is wrong with a line is named, with what does the same today; what is right is left alone."""

import json
import re

import pytest

from kveik.errors import LineUnreadableError
from kveik.profiles.known_options import committed
from kveik.profiles.line_check import Report, check_text, rules
from kveik.profiles.nodes import nodes
from kveik.profiles.shell_form import shell_files
from tests.launches import smallest


def check(text: str, ascend: str = "0.30.0") -> Report:
    return check_text(text, ascend)


def named(text: str, ascend: str = "0.30.0") -> dict[str, tuple[str, str]]:
    return {finding.name: (finding.told, finding.instead) for finding in check(text, ascend).findings}


def with_backend(backend: str) -> str:
    extra = json.dumps({"backend": backend})
    transfer = f'{{"kv_connector":"AscendStoreConnector","kv_role":"kv_both","kv_connector_extra_config":{extra}}}'
    return f"vllm serve /m --kv-transfer-config '{transfer}'"


@pytest.mark.parametrize(
    ("given", "name", "told", "instead"),
    [
        ("--enable-metrics", "--enable-metrics", "vllm run-batch", "/metrics"),
        ("--metrics-port 8001", "--metrics-port", "no port of their own", "/metrics"),
        ("--max-paddings 512", "--max-paddings", "removed", "--max-num-batched-tokens"),
        ("--max_paddings 512", "--max_paddings", "removed", "--max-num-batched-tokens"),
        ("--preemption-mode recompute", "--preemption-mode", "always computed again", "--watermark"),
        ("--reserved-memory 0.8", "--reserved-memory", "never", "--gpu-memory-utilization"),
        ("--swap-space 4", "--swap-space", "V0", "OffloadingConnector"),
        ("--max-model-length 4096", "--max-model-length", "no such option", "--max-model-len"),
        ("--enable-prefix-chaching", "--enable-prefix-chaching", "no such option", "--enable-prefix-caching"),
        ("--dtype fp16", "--dtype", "none of its values", "float16"),
        ("--port", "--port", "needs a value", ""),
        (
            "--max-num-seqs 64 --max-num-batched-tokens 32",
            "--max-num-batched-tokens",
            "less than --max-num-seqs 64",
            "64",
        ),
        ("--data-parallel-size 2 --data-parallel-size-local 4", "--data-parallel-size-local", "more than 2", "4"),
        ("--data-parallel-size 2 --data-parallel-start-rank 0", "--data-parallel-start-rank", "hybrid", "leave it out"),
        ("--data-parallel-size 2 --headless", "--headless", "which ranks", "--data-parallel-start-rank"),
        ("--headless --data-parallel-size 2 --data-parallel-start-rank 2", "--data-parallel-start-rank", "beyond", ""),
        (
            "--headless --data-parallel-size 2 --data-parallel-start-rank 1 --data-parallel-address 127.0.0.1",
            "--data-parallel-address",
            "this node itself",
            "first node",
        ),
        ("--gpu-memory-utilization 95", "--gpu-memory-utilization", "no share", "0.9"),
        ("--seed 1 --seed 2", "--seed", "given twice", "--seed"),
        ("--enable-prefix-caching --no-enable-prefix-caching", "--no-enable-prefix-caching", "given twice", ""),
        ('--enforce-eager --compilation-config \'{"cudagraph_mode":"FULL"}\'', "--enforce-eager", "graphs off", ""),
        ("--kv-transfer-config '{\"kv_connector\":}'", "--kv-transfer-config", "no valid JSON", ""),
        (
            '--kv-transfer-config \'{"kv_connector":"AscendStorConnector","kv_role":"kv_both"}\'',
            "--kv-transfer-config",
            "no connector is called",
            "AscendStoreConnector",
        ),
        (
            '--kv-transfer-config \'{"kv_connector":"OffloadingConnector"}\'',
            "--kv-transfer-config",
            "kv_role",
            "kv_both",
        ),
        ("--engram-config '{\"dp_shared_memory\":true}'", "--engram-config", "several data-parallel ranks", ""),
    ],
)
def test_an_option_that_does_not_fit_is_named_with_what_does(given: str, name: str, told: str, instead: str) -> None:
    found = named(f"vllm serve /m {given}")
    assert list(found) == [name]
    assert told in found[name][0]
    assert instead in found[name][1]
    assert not check(f"vllm serve /m {given}").fits


@pytest.mark.parametrize(
    ("given", "ascend", "told", "instead"),
    [
        ("VLLM_USE_V1=1", "", "only V1", "unset"),
        ("VLLM_LOGGIN_LEVEL=DEBUG", "", "no such variable", "VLLM_LOGGING_LEVEL"),
        ("VLLM_ASCEND_BALANCE_SCHEDULING=1", "0.30.0", "0.27.1rc1", "enable_balance_scheduling"),
        ("DS_WORKER_ADDR=h:1", "0.27.1rc1", "reads a file", "YR_CONFIG_PATH"),
        ("HCCL_DETERMINISTIC=1", "", "none of its values", "strict"),
        ("DS_H2D_MEMCPY_POLICY=fast", "", "none of its values", "huge_ffts"),
        ("ASCEND_LAUNCH_BLOCKING=1", "", "graph mode", "--enforce-eager"),
    ],
)
def test_a_variable_without_effect_is_named_with_what_has_one(given: str, ascend: str, told: str, instead: str) -> None:
    name = given.partition("=")[0]
    found = named(f"export {given}\nvllm serve /m", ascend or "0.30.0")
    assert list(found) == [name]
    assert told in found[name][0]
    assert instead in found[name][1]


@pytest.mark.parametrize("given", ["DS_WORKER_ADDR=h:1", "VLLM_ASCEND_BALANCE_SCHEDULING=1"])
def test_a_variable_is_right_for_the_version_that_reads_it(given: str) -> None:
    assert check(f"export {given}\nvllm serve /m", "0.26.0rc1").fits


@pytest.mark.parametrize(
    ("backend", "needs"),
    [("yuanrong", "YR_CONFIG_PATH"), ("mooncake", "MOONCAKE_CONFIG_PATH"), ("memcache", "MMC_LOCAL_CONFIG_PATH")],
)
def test_a_backend_without_its_file_is_told(backend: str, needs: str) -> None:
    line = with_backend(backend)
    assert list(named(line)) == [needs]
    assert check(f"export {needs}=/f\n{line}").fits


def test_a_backend_that_the_version_has_not_is_told() -> None:
    found = named(with_backend("yuanrong"), "0.18.0rc1")
    assert "no backend yuanrong" in found["--kv-transfer-config"][0]


@pytest.mark.parametrize(
    "given",
    [
        "--max-num_seqs 8 --max_num_batched_tokens 4k",
        "--enable-prefix-c",  # argparse takes a clear beginning
        "-tp 2",
        "--compilation-config.cudagraph_mode FULL",
        "--seed -1",
        "--max-model-len $LENGTH",
        "--collect-detailed-traces model worker --port 1",
    ],
)
def test_what_the_parser_takes_fits(given: str) -> None:
    assert check(f"vllm serve /m {given}").findings == ()


def test_arguments_of_python_code_are_named_too() -> None:
    found = named("engine = LLMEngine(model='m', max_paddings=512, preemption_mode='recompute', reserved_memory=0.8)")
    assert set(found) == {"max_paddings", "preemption_mode", "reserved_memory"}


def test_a_text_with_nothing_to_check_is_an_error() -> None:
    with pytest.raises(LineUnreadableError, match="no `vllm serve`"):
        check("x = 1")


def test_all_that_is_generated_fits() -> None:
    for wish in smallest():
        for node in nodes(wish):
            found = check(shell_files(node)["start.sh"])
            assert (wish.hardware.name, wish.model.name, found.findings) == (wish.hardware.name, wish.model.name, ())


def test_no_rule_speaks_of_an_option_that_there_is() -> None:
    known = committed()
    assert {name for name in rules()["options"] if f"--{name}" in known.options} == set()
    assert {name for name in rules()["variables"] if name in known.environment} == set()


def test_what_is_given_instead_is_an_option_that_there_is() -> None:
    known = committed()
    said = " ".join(row["instead"] for table in ("options", "variables") for row in rules()[table].values())
    named_options = set(re.findall(r"(?<![\w-])--[a-z][a-z0-9-]*", said)) - {"--tier"}
    assert {name for name in named_options if name not in known.options} == set()


def test_the_report_is_a_document_for_programs() -> None:
    document = check("vllm serve /m --swap-space 4").document()
    assert document["fits"] is False
    assert document["findings"][0]["name"] == "--swap-space"
    assert "0.32" in document["judged_by"]


def test_what_works_and_will_not_for_ever_is_only_noted() -> None:
    report = check("export VLLM_ASCEND_ENABLE_MLAPO=1\nvllm serve /m")
    assert report.fits
    assert [finding.severity for finding in report.findings] == ["note"]
    assert "enable_mlapo" in report.findings[0].instead


def test_a_variable_that_only_the_plugin_knows_is_left_alone() -> None:
    assert check("export VLLM_VERSION=0.30.0\nvllm serve /m").findings == ()
