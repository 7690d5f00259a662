"""The modes of an engine from the one wanted to the simplest, and which failed starts make a simpler one sensible."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kveik.config import EngineSettings
from kveik.errors import ConfigError
from kveik.launch.ladder import Mode, alternatives, why_it_failed


def names(device: str, *arguments: str, **settings: object) -> list[str]:
    return [mode.name for mode in alternatives(EngineSettings(**settings), device, arguments)]  # type: ignore[arg-type]


def test_devices_with_graphs_go_from_full_graphs_to_eager_in_three_steps() -> None:
    for device in ("cuda", "ascend"):
        assert names(device) == ["full-and-piecewise", "full-decode-only", "piecewise", "eager"]


def test_on_cpu_there_is_only_compiled_and_eager() -> None:
    assert alternatives(EngineSettings(), "cpu", ["--max-num-seqs", "4"]) == (
        Mode("compiled", ("--max-num-seqs", "4")),
        Mode("eager", ("--max-num-seqs", "4", "--enforce-eager")),
    )


def test_eager_by_the_setting_is_the_only_mode_and_said_to_vllm_once() -> None:
    for device in ("cpu", "cuda"):
        assert alternatives(EngineSettings(mode="eager"), device, []) == (Mode("eager", ("--enforce-eager",)),)
        given_too = alternatives(EngineSettings(mode="eager"), device, ["--enforce-eager"])
        assert given_too == (Mode("eager", ("--enforce-eager",)),)


def test_without_falling_back_there_is_only_what_was_wanted() -> None:
    assert names("cuda", fall_back=False) == ["full-and-piecewise"]


@pytest.mark.parametrize(
    ("arguments", "modes"),
    [
        (["--compilation-config", '{"cudagraph_mode": "FULL"}'], ["full", "full-decode-only", "piecewise", "eager"]),
        (["--compilation_config={'x': 1}".replace("'", '"')], ["full-and-piecewise", "full-decode-only", "piecewise"]),
        (["-cc.cudagraph_mode=FULL_DECODE_ONLY"], ["full-decode-only", "piecewise", "eager"]),
        (["-cc.cudagraph_mode", "piecewise"], ["piecewise", "eager"]),
        (["-cc", '{"cudagraph_mode": "NONE"}'], ["compiled", "eager"]),
        (["-cc", '{"cudagraph_mode": "NONE", "mode": 0}'], ["eager"]),
        (["-O1"], ["piecewise", "eager"]),
        (["-O=1"], ["piecewise", "eager"]),
        (["-O", "1"], ["piecewise", "eager"]),
        (["--optimization-level", "0"], ["eager"]),
        (["--optimization_level=3"], ["full-and-piecewise", "full-decode-only", "piecewise"]),
        (["--enforce-eager"], ["eager"]),
        (["--enforce_eager"], ["eager"]),
    ],
)
def test_the_ladder_begins_with_what_the_arguments_ask_for(arguments: list[str], modes: list[str]) -> None:
    assert names("cuda", *arguments)[: len(modes)] == modes


def test_simpler_modes_keep_all_else_that_was_said_about_compilation() -> None:
    arguments = ["--max-num-seqs", "8", "-cc.cudagraph_mode=FULL", "-cc.pass_config.fuse_norm_quant=true", "-O2"]
    wanted, decode_only, piecewise, eager = alternatives(EngineSettings(), "cuda", arguments)
    assert list(wanted.arguments) == arguments
    for mode, graphs in ((decode_only, "FULL_DECODE_ONLY"), (piecewise, "PIECEWISE")):
        *others, config = mode.arguments
        assert others == ["--max-num-seqs", "8", "--optimization-level", "2", "--compilation-config"]
        assert json.loads(config) == {"cudagraph_mode": graphs, "pass_config": {"fuse_norm_quant": True}}
    assert eager.arguments == ("--max-num-seqs", "8", "--enforce-eager")


def test_several_objects_about_compilation_become_one() -> None:
    arguments = ["-cc", '{"pass_config": {"a": 1}}', "-cc.pass_config.b=2", "-cc.cudagraph_mode=FULL"]
    piecewise = alternatives(EngineSettings(), "cuda", arguments)[2]
    assert json.loads(piecewise.arguments[-1]) == {"pass_config": {"a": 1, "b": 2}, "cudagraph_mode": "PIECEWISE"}


def test_a_compilation_config_that_is_no_object_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="--compilation-config is 'FULL', expected a JSON object"):
        alternatives(EngineSettings(), "cuda", ["--compilation-config", "FULL"])


@given(st.lists(st.sampled_from(["--max-num-seqs", "4", "-O2", "-cc.cudagraph_mode=FULL", "--x=1", "-O"]), max_size=6))
def test_the_first_mode_is_what_was_given_and_each_mode_is_simpler_than_the_one_before(arguments: list[str]) -> None:
    order = ["full-and-piecewise", "full", "full-decode-only", "piecewise", "compiled", "eager"]
    for device in ("cpu", "cuda", "ascend"):
        modes = alternatives(EngineSettings(), device, arguments)
        assert list(modes[0].arguments) == arguments
        places = [order.index(mode.name) for mode in modes]
        assert places == sorted(set(places))
        assert modes[-1].name == "eager"


REFUSED = "pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig"


def logged(*lines: str) -> str:
    """Lines as an engine core of vLLM 0.32 logs its errors, and what its API server makes of them."""
    head = "(EngineCore pid=77) ERROR 11-29 23:30:02 [core.py:1063] "
    told = "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}"
    return "\n".join([*(f"{head}{line}" for line in lines), "Traceback (most recent call last):", told])


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        (
            logged("torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler found in cxx"),
            "compiling failed: torch._inductor.exc.InductorError: InvalidCxxCompiler: No working C++ compiler",
        ),
        (
            logged("RuntimeError: ACL graph capture failed (_npu_graph_exception_handler)"),
            "capturing graphs failed: RuntimeError: ACL graph capture failed",
        ),
        (
            logged(
                'File "v1/worker/gpu_model_runner.py", line 6300, in capture_model', "OutOfMemoryError: CUDA out of"
            ),
            "capturing graphs failed: OutOfMemoryError: CUDA out of",
        ),
        (
            logged("RuntimeError: EL0009: Stream resources are insufficient"),
            "capturing graphs ran out of streams: RuntimeError: EL0009",
        ),
        (
            logged("ValueError: CUDAGraphMode.FULL is not supported with FlexAttention backend"),
            "the mode is not supported here: ValueError: CUDAGraphMode.FULL",
        ),
        (logged("RuntimeError: something nobody has seen"), "RuntimeError: something nobody has seen"),
        ("(EngineCore pid=7) Segmentation fault", "Segmentation fault"),
    ],
)
def test_a_failure_of_compilation_or_graphs_or_without_explanation_asks_for_a_simpler_mode(
    log: str, reason: str
) -> None:
    failure = why_it_failed(log)
    assert failure.simpler_may_help
    assert failure.reason.startswith(reason)


@pytest.mark.parametrize(
    ("log", "reason"),
    [
        ("OSError: [Errno 98] Address already in use", "its port is taken: OSError: [Errno 98]"),
        (
            "huggingface_hub.errors.HFValidationError: Repo id must use alphanumeric chars: '/models/none'.",
            "its model is missing or not whole: huggingface_hub.errors.HFValidationError",
        ),
        (
            "OSError: /m does not appear to have a file named config.json",
            "its model is missing or not whole: OSError: /m does not appear",
        ),
        ("api_server.py: error: unrecognized arguments: --no", "vLLM refuses an argument: api_server.py: error"),
        (f"{REFUSED}\n  Value error, max_model_len (99) is greater", f"vLLM refuses a setting: {REFUSED}: Value"),
        (
            logged("ValueError: No available memory for the cache blocks. Try increasing it."),
            "its KV cache does not fit: ValueError: No available memory",
        ),
        (logged("MemoryError"), "this machine's memory does not suffice: MemoryError"),
        (
            logged("Worker proc VllmWorker-0 died unexpectedly (exit code: -9), shutting down executor."),
            "this machine's memory does not suffice: Worker proc VllmWorker-0 died",
        ),
        (logged("ModuleNotFoundError: No module named 'kveik'"), "something that it needs is not there: Module"),
        (logged("torch.OutOfMemoryError: CUDA out of memory. Tried"), "the device's memory does not suffice: torch"),
        (
            logged("ValueError: Free memory on device cuda:0 (1/80 GiB) on startup is less than desired GPU memory "
                   "utilization (0.9)."),
            "something else uses the device's memory",
        ),
    ],
)  # fmt: skip
def test_what_no_mode_repairs_asks_for_none(log: str, reason: str) -> None:
    failure = why_it_failed(log)
    assert not failure.simpler_may_help
    assert failure.reason.startswith(reason)


def test_lines_that_are_no_errors_explain_nothing() -> None:
    told = "(EngineCore pid=7) INFO 11-29 23:30:02 [core.py:1] graph capture, No module named 'x', Errno 98"
    warned = "(Worker pid=7) WARNING 11-29 23:30:02 [core.py:1] MemoryError: none"
    failure = why_it_failed(f"{told}\n{warned}\nRuntimeError: it is something else")
    assert failure.simpler_may_help
    assert failure.reason == "RuntimeError: it is something else"


def test_the_root_is_told_and_not_what_follows_from_it() -> None:
    failure = why_it_failed(logged("KeyError: 'first'", "RuntimeError: second"))
    assert failure.reason == "KeyError: 'first'"


def test_a_start_that_was_killed_without_a_word_wanted_too_much_memory() -> None:
    for code in (-9, 137):
        failure = why_it_failed("", code)
        assert not failure.simpler_may_help
        assert "signal 9" in failure.reason


def test_a_start_that_was_told_to_end_says_nothing_about_its_mode() -> None:
    for code in (-15, 143, 130):
        failure = why_it_failed(logged("in capture_model", "RuntimeError: cancelled"), code)
        assert not failure.simpler_may_help
        assert failure.reason == "somebody told it to end while it started"


def test_a_worker_that_died_is_the_reason_and_not_what_is_dumped_or_told_after_it() -> None:
    died = "Worker proc VllmWorker-0 died unexpectedly (exit code: None), shutting down executor."
    dumped = "Dumping input data for V1 LLM engine with config: {'cudagraph_capture_sizes': []}, captured graphs"
    failure = why_it_failed(logged(died, dumped, "RuntimeError: cancelled"), 0)
    assert failure.simpler_may_help
    assert failure.reason == died


def test_a_start_that_ended_silently_may_be_the_modes_fault() -> None:
    assert why_it_failed("").reason == "it ended without a word"
    failure = why_it_failed("", 139)
    assert failure.simpler_may_help
    assert failure.reason == "it ended with exit code 139 without a word"
