"""One data-parallel group of real engines over two nodes (two loopback addresses), as `kveik up --node` starts it."""

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kveik.engine.client import CompletionRequest, EngineClient
from kveik.engine.process import ServerProcess, free_port
from kveik.errors import EngineError
from kveik.launch.fleet_spec import read_fleet
from kveik.launch.parts import Here, describe_node, read_tables
from tests.agents import wait_until

START_S = 800.0
pytestmark = [pytest.mark.long, pytest.mark.timeout(1000)]


@pytest.fixture(scope="module")
def group(
    engine_python: str, model: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[EngineClient, list[ServerProcess]]]:
    """The head, with an API server, and a headless rank, each by the description of its own node."""
    folder = tmp_path_factory.mktemp("group")
    config = folder / "kveik.toml"
    config.write_text(
        f'[fleet]\nstate_folder = "{folder}/state"\ndrain_s = 5\n'
        f'[engine]\npython = "{engine_python}"\nmodel = "{model("smollm2-135m-instruct")}"\nmode = "eager"\n'
        'max_model_tokens = 512\nkv_cache_bytes = "64 MiB"\nshared_cache = false\nkv_events = false\n'
        'arguments = "--api-server-count 1"\n'
        '[[nodes]]\nname = "n0"\naddress = "127.0.0.2"\n[[nodes]]\nname = "n1"\naddress = "127.0.0.3"\n'
        f'[[launch]]\nname = "g"\nnode = "n0"\ncores = "0"\nport = {free_port()}\nrpc_port = {free_port()}\n'
        "data_parallel = 2\n"
        '[[launch]]\nname = "g-1"\nnode = "n1"\ncores = "1"\nhead = "g"\narguments = ""\n'
    )
    with ExitStack() as running:
        processes, urls = [], []
        for node in ("n0", "n1"):
            spec = read_fleet(config, {}, {"node": node})
            parts = describe_node(spec, read_tables(config, {}), Here())
            (part,) = (part for part in parts if part.kind == "engine")
            environment = part.full_environment(os.environ)
            process = ServerProcess(part.name, part.variants[0].command, environment, folder / f"{part.name}.log")
            processes.append(running.enter_context(process))
            process.start()
            urls.append(part.url)
        client = EngineClient(urls[0])
        processes[0].wait_ready(lambda: processes[1].running and answers(client), START_S)
        yield client, processes


def answers(client: EngineClient) -> bool:
    try:
        return ask(client) == "length"
    except EngineError:
        return False


def ask(client: EngineClient) -> str:
    request = CompletionRequest(prompt=tuple(range(100, 120)), max_tokens=4)
    return client.complete(request, "smollm2-135m-instruct").finish_reason


def tokens_of(client: EngineClient) -> dict[str, float]:
    """Tokens that each rank has generated, by its number."""
    lines = [line for line in client.metrics_text().splitlines() if line.startswith("vllm:generation_tokens_total{")]
    return {line.partition('engine="')[2].partition('"')[0]: float(line.split()[-1]) for line in lines}


def test_requests_to_the_head_are_computed_by_the_rank_on_the_other_node_too(
    group: tuple[EngineClient, list[ServerProcess]],
) -> None:
    client, _ = group
    wait_until(lambda: ask(client) == "length" and min(tokens_of(client).values()) > 0, "both ranks computed", 120)
    assert set(tokens_of(client)) == {"0", "1"}


def test_a_rank_that_is_left_alone_does_not_end_by_itself(group: tuple[EngineClient, list[ServerProcess]]) -> None:
    """Which is why the watchdogs of all nodes restart a group together."""
    _, (head, rank) = group
    head.kill()
    assert not head.running
    assert rank.running
