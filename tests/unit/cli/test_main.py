import subprocess
import sys

import pytest

import kveik
from kveik.cli import main


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_keeps_to_the_agreed_form(name: str) -> None:
    module = main.module_of(name)
    assert main.COMMANDS[name]
    assert callable(module.add_arguments)
    assert callable(module.run)


def test_help_lists_every_command_and_the_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    assert all(f"\n{group}:\n" in text for group in main.GROUPS)
    listed = [line.split()[0] for line in text.splitlines() if line[:2] == "  " and line[2:3].strip()]
    assert [name for name in listed if name in main.COMMANDS] == list(main.COMMANDS), "each once, with its group"
    assert "exit codes" in text


@pytest.mark.parametrize("name", main.COMMANDS)
def test_every_command_has_help(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main([name, "--help"])
    assert end.value.code == 0
    assert f"kveik {name}" in capsys.readouterr().out


def test_the_version_is_the_package_s(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--version"])
    assert capsys.readouterr().out == f"kveik {kveik.__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["nonsense"], ["agent", "--nonsense"]])
def test_wrong_use_exits_with_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main.main(arguments)
    assert end.value.code == 2
    assert "usage" in capsys.readouterr().err


def test_an_interrupt_from_the_keyboard_exits_as_shells_expect(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(main.module_of("stats"), "run", interrupted)
    assert main.main(["stats"]) == 130
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("arguments", "absent"),
    [
        (["stats", "--help"], ["kveik.verify", "kveik.cli.demo", "torch", "vllm"]),
        (["--help"], ["kveik.cli.stats", "kveik.cli.up", "numpy", "msgspec"]),
        (["--version"], ["kveik.cli.stats", "kveik.cli.up", "numpy", "msgspec"]),
    ],
)
def test_only_what_is_called_is_loaded(arguments: list[str], absent: list[str]) -> None:
    code = (
        "import sys\n"
        "from kveik.cli import main\n"
        f"try:\n    main.main({arguments!r})\n"
        "except SystemExit:\n    pass\n"
        f"assert not set({absent!r}) & set(sys.modules)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
