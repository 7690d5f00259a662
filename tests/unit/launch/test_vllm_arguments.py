"""The arguments that Kveik makes for engines are ones that vLLM's own parser takes, and mean what they should."""

from pathlib import Path
from typing import Any

import pytest
from vllm.config import CUDAGraphMode
from vllm.engine.arg_utils import AsyncEngineArgs
from vllm.entrypoints.launchers.cli_args import make_arg_parser
from vllm.utils.argparse_utils import FlexibleArgumentParser

from kveik.config import EngineSettings
from kveik.launch.data_parallel import data_parallel_arguments
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.ladder import alternatives


@pytest.fixture(scope="module")
def parser() -> Any:
    return make_arg_parser(FlexibleArgumentParser(prog="vllm serve", exit_on_error=False))


def parsed(parser: Any, model: Path, arguments: list[str]) -> Any:
    return AsyncEngineArgs.from_cli_args(parser.parse_args(["--model", str(model), *arguments]))


@pytest.mark.parametrize("device", ["cpu", "cuda", "ascend"])
@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["-O1"],
        ["-cc.cudagraph_mode=FULL", "--max-num-seqs", "4"],
        ["--compilation-config", '{"cudagraph_mode": "FULL_DECODE_ONLY", "max_cudagraph_capture_size": 32}'],
        ["--enforce-eager"],
    ],
    ids=" ".join,
)
def test_vllm_takes_every_mode_of_the_ladder_for_what_its_name_says(
    parser: Any, tmp_path: Path, device: str, arguments: list[str]
) -> None:
    for number, mode in enumerate(alternatives(EngineSettings(), device, arguments)):
        engine = parsed(parser, tmp_path, list(mode.arguments))
        assert engine.enforce_eager == (mode.name == "eager")
        if "--max-num-seqs" in arguments:
            assert engine.max_num_seqs == 4
        if number and mode.name != "eager":
            assert engine.compilation_config.cudagraph_mode is CUDAGraphMode[mode.name.replace("-", "_").upper()]
            if "max_cudagraph_capture_size" in " ".join(arguments):
                assert engine.compilation_config.max_cudagraph_capture_size == 32


def test_vllm_takes_the_arguments_of_a_group_over_two_nodes(parser: Any, tmp_path: Path) -> None:
    file = tmp_path / "kveik.toml"
    file.write_text(
        '[engine]\nmodel = "/models/m"\n[[nodes]]\nname = "n0"\naddress = "10.0.0.1"\n'
        '[[nodes]]\nname = "n1"\naddress = "10.0.0.2"\n'
        '[[launch]]\nname = "a"\nnode = "n0"\ndata_parallel = 4\nrpc_port = 12890\n'
        '[[launch]]\nname = "b"\nnode = "n1"\nhead = "a"\ndata_parallel_local = 2\n'
    )
    spec = read_fleet(file, {})
    head, rest = (parser.parse_args(data_parallel_arguments(engine, spec)) for engine in spec.engines)
    for args in (head, rest):
        assert (args.data_parallel_size, args.data_parallel_size_local) == (4, 2)
        assert (args.data_parallel_address, args.data_parallel_rpc_port) == ("10.0.0.1", 12890)
    assert (head.headless, head.data_parallel_start_rank) == (False, None)
    assert (rest.headless, rest.data_parallel_start_rank) == (True, 2)
