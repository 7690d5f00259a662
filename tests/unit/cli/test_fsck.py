import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from kveik.cli import main
from kveik.clock import Deadline
from kveik.store.filesystem import FilesystemStore
from kveik.store.filesystem_layout import block_name, leaf_of
from kveik.store.filesystem_options import FilesystemOptions
from kveik.store.redis import RedisStore
from kveik.store.redis_link import connect
from tests.blocks import make_block
from tests.redis_server import running_redis

BLOCKS = [make_block(number) for number in range(3)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    store = FilesystemStore(FilesystemOptions(root=tmp_path / "cache", sweep_interval_s=0))
    store.put([b.key for b in BLOCKS], [b.frame for b in BLOCKS], Deadline.after(20.0))
    store.close()
    return tmp_path / "cache"


def damage(folder: Path) -> Path:
    path = folder.joinpath("kveik-1", *leaf_of(BLOCKS[0].key), block_name(BLOCKS[0].key))
    path.write_bytes(BLOCKS[0].damaged())
    os.utime(path, (1_000_000_000, 1_000_000_000))
    return path


def test_a_sound_folder_exits_with_0_and_says_so(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["fsck", "--folder", str(folder)]) == 0

    text = capsys.readouterr().out
    assert (b"N" * 16).hex() in text, "the whole digest, also where the output is no terminal"
    assert "3 blocks" in text
    assert text.rstrip().endswith("sound")


def test_damage_exits_with_1_and_names_the_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(folder)

    assert main.main(["fsck", "filesystem", "--folder", str(folder)]) == 1

    text = capsys.readouterr().out
    assert f"corrupt: {path.relative_to(folder / 'kveik-1')}: payload checksum differs" in text
    assert "1 files are not sound" in text
    assert path.exists()


def test_repair_removes_it_and_the_next_look_finds_nothing(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = damage(folder)

    assert main.main(["fsck", "--folder", str(folder), "--repair"]) == 1
    assert "1 removed" in capsys.readouterr().out
    assert not path.exists()
    assert main.main(["fsck", "--folder", str(folder)]) == 0


def test_programs_get_one_document(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    damage(folder)

    assert main.main(["fsck", "--folder", str(folder), "--json"]) == 1

    document = json.loads(capsys.readouterr().out)
    assert (document["blocks"], document["bad"], document["removed"]) == (3, 1, 0)
    assert document["files"][0]["finding"] == "corrupt"


def test_a_quick_look_reads_no_payload(folder: Path) -> None:
    damage(folder)

    assert main.main(["fsck", "--folder", str(folder), "--depth", "headers"]) == 0


def test_the_folder_comes_from_the_configuration(folder: Path, tmp_path: Path) -> None:
    config = tmp_path / "kveik.toml"
    config.write_text(f'[agent]\nfilesystem = "{folder}"\n')

    assert main.main(["fsck", "--config", str(config)]) == 0


def test_wrong_use_exits_with_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kveik.toml"
    config.write_text("[agent]\n")

    assert main.main(["fsck", "tape"]) == 2
    assert "there is no tier 'tape'" in capsys.readouterr().err
    assert main.main(["fsck", "--config", str(config)]) == 2
    assert "no filesystem tier is configured" in capsys.readouterr().err
    assert main.main(["fsck", "--sample", "0"]) == 2
    assert "--sample is 0" in capsys.readouterr().err


def test_a_folder_that_cannot_be_read_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["fsck", "--folder", str(tmp_path / "nowhere")]) == 3
    assert "holds no tier that can be read" in capsys.readouterr().err


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[tuple[str, Any]]:
    """The configuration of a Redis tier with three blocks in it, and a plain client of its server."""
    with running_redis(tmp_path) as server:
        link = connect(server.settings())
        store = RedisStore(link)
        store.put([b.key for b in BLOCKS], [b.frame for b in BLOCKS], Deadline.after(20.0))
        config = tmp_path / "kveik.toml"
        config.write_text(f'[redis]\naddress = "{server.address}"\n')
        yield str(config), link.client
        store.close()


def test_of_a_tier_without_a_folder_blocks_are_read_back(
    redis: tuple[str, Any], capsys: pytest.CaptureFixture[str]
) -> None:
    config, _ = redis

    assert main.main(["fsck", "redis", "--config", config, "--json"]) == 0

    document = json.loads(capsys.readouterr().out)
    assert (document["listed"], document["read"], document["results"]) == (3, 3, {"hit": 3})
    assert main.main(["fsck", "redis", "--config", config, "--sample", "2"]) == 0
    assert "2 of 3 blocks read back" in capsys.readouterr().out
    assert main.main(["fsck", "redis", "--config", config, "--repair"]) == 2
    assert main.main(["fsck", "mooncake", "--config", config]) == 2


def test_a_wrong_value_in_such_a_tier_exits_with_1(redis: tuple[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    config, client = redis
    for name in list(client.scan_iter()):
        client.set(name, bytes(BLOCKS[0].damaged()))

    assert main.main(["fsck", "redis", "--config", config]) == 1
    assert "redis: 3 of 3 blocks read back: 3 blocks are not sound" in capsys.readouterr().out


def test_such_a_tier_that_is_away_exits_with_3(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "kveik.toml"
    config.write_text('[redis]\naddress = "127.0.0.1:9"\nconnect_s = 0.5\n')

    assert main.main(["fsck", "redis", "--config", str(config)]) == 3
    assert "redis tier" in capsys.readouterr().err
