"""``kveik verify`` over each kind of store, with a node for each engine: every leg is equal to a cold run."""

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from kveik.cli.main import main
from tests.tier_servers import KINDS, TierServer, running_tier_server

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500)]


def sections_of(store: TierServer) -> str:
    """The store as a configuration file names it."""
    sections: dict[str, dict[str, Any]] = {"agent": dict(store.agent)}
    sections |= {name: section for name, section in asdict(store.stores).items() if _is_used(section)}
    return "\n".join(
        f"[{name}]\n" + "\n".join(f"{key} = {json.dumps(value)}" for key, value in section.items())
        for name, section in sections.items()
    )


def _is_used(section: dict[str, Any]) -> bool:
    return bool(section.get("master") or section.get("worker") or section.get("address"))


@pytest.mark.parametrize("kind", KINDS)
def test_every_leg_holds_over_two_nodes_with_nothing_in_common_but_the_store(
    kind: str,
    tmp_path: Path,
    engine_python: str,
    model: Callable[[str], Path],
    capsys: pytest.CaptureFixture[str],
) -> None:
    with running_tier_server(kind) as store:
        config = tmp_path / "stores.toml"
        config.write_text(sections_of(store))
        where = ["--start", "--model", str(model("tiny-qwen3")), "--engine-python", engine_python]
        what = ["--nodes", "2", "--store-config", str(config), "--lengths", "129,640,1400", "--answer-tokens", "4"]
        code = main(["verify", *where, *what, "--json"])
    out, err = capsys.readouterr()
    assert code == 0, f"{out}\n{err}"
    legs = json.loads(out)["legs"]
    assert [leg["leg"] for leg in legs].count("restart") == 2
    for leg in legs:
        assert leg["holds"], leg["complaints"]
        if leg["leg"] in ("other", "restart"):
            assert leg["tokens"]["external"] == leg["tokens"]["used"] == leg["tokens"]["expected_hits"] > 0
            assert leg["blocks"]["read_back"] > 0
    print(f"{kind}: {', '.join(' '.join((leg['leg'], leg['mode'])) for leg in legs)} are equal")
