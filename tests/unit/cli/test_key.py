from pathlib import Path

import pytest

from kveik.cli import main
from kveik.router.api_keys import ApiKeys
from kveik.router.keys_file import read_keys


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KVEIK_ROUTER_KEYS_FILE", raising=False)
    return tmp_path / "keys" / "keys.json"


def new(path: Path, name: str, *more: str) -> int:
    return main.main(["key", "new", name, "--keys-file", str(path), *more])


def test_a_new_key_is_printed_alone_and_once_and_works(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert new(path, "team") == 0
    printed = capsys.readouterr()
    secret = printed.out.strip()
    assert secret.startswith("sk-kveik-")
    assert len(secret) > 50
    assert "only time" in printed.err
    found = ApiKeys(path).find(b"Bearer " + secret.encode())
    assert found is not None
    assert found.name == "team"
    assert secret not in path.read_text()
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert main.main(["key", "list", "--keys-file", str(path)]) == 0
    assert secret not in capsys.readouterr().out


def test_limits_and_models_are_kept(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    limits = ("--requests-per-min", "60", "--tokens-per-min", "9000", "--concurrent", "4")
    assert new(path, "team", "--models", "qwen-*", "--models", "llama", "--tenant", "lab", *limits) == 0
    (key,) = read_keys(path).keys
    assert (key.models, key.tenant) == (("qwen-*", "llama"), "lab")
    assert (key.requests_per_min, key.tokens_per_min, key.concurrent) == (60, 9000, 4)
    assert key.created.endswith("+00:00")
    capsys.readouterr()
    main.main(["key", "list", "--keys-file", str(path)])
    shown = capsys.readouterr().out
    assert all(word in shown for word in ("team", "lab", "60", "9000"))


def test_a_revoked_key_is_gone_and_the_others_stay(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    new(path, "first")
    new(path, "second")
    assert main.main(["key", "revoke", "first", "--keys-file", str(path)]) == 0
    assert "first is revoked" in capsys.readouterr().out
    assert [key.name for key in read_keys(path).keys] == ["second"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("new", "team"), "already a key named 'team'"),
        (("new", "a b"), "'a b' is no name"),
        (("new", "other", "--concurrent", "-1"), "negative"),
        (("new",), "name the key"),
        (("revoke",), "name the key"),
        (("revoke", "nobody"), "no key named 'nobody'"),
    ],
)
def test_what_makes_no_sense_is_refused_and_changes_nothing(
    path: Path, arguments: tuple[str, ...], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    new(path, "team")
    before = path.read_bytes()
    assert main.main(["key", *arguments, "--keys-file", str(path)]) == 2
    assert message in capsys.readouterr().err
    assert path.read_bytes() == before


def test_the_file_is_named_by_the_configuration_or_the_environment(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["key", "list"]) == 2
    assert "no keys file" in capsys.readouterr().err
    config = tmp_path / "kveik.toml"
    config.write_text(f'[router]\nkeys_file = "{path}"\n')
    assert main.main(["key", "new", "team", "--config", str(config)]) == 0
    monkeypatch.setenv("KVEIK_ROUTER_KEYS_FILE", str(path))
    assert main.main(["key", "list"]) == 0
    assert "team" in capsys.readouterr().out


def test_listing_a_file_that_is_not_there_is_an_error(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["key", "list", "--keys-file", str(path)]) == 2
    assert "cannot read the keys file" in capsys.readouterr().err
