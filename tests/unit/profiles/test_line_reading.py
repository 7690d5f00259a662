"""A script is read as a shell would, as far as its own text says."""

import pytest

from kveik.errors import LineUnreadableError
from kveik.profiles.line_reading import serve_lines


def only(text: str) -> tuple[tuple[str, ...], dict[str, str]]:
    (line,) = serve_lines(text)
    return line.arguments, line.environment


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("vllm serve /m --a=b --flag", ("/m", "--a=b", "--flag")),
        ("/opt/bin/vllm serve /m", ("/m",)),
        ("python -m vllm.entrypoints.openai.api_server --model /m", ("--model", "/m")),
        ("vllm serve /m \\\n  --port 1 \\\n  --x 'a b'", ("/m", "--port", "1", "--x", "a b")),
        ("vllm serve /m --x 1 # --y 2", ("/m", "--x", "1")),
        ("vllm serve /m --x a#b", ("/m", "--x", "a#b")),
        ("vllm serve /m 2>&1 | tee log.txt", ("/m",)),
        ("vllm serve /m > /tmp/out 2> /tmp/err &\necho started", ("/m",)),
        ("cd /x && vllm serve /m; echo --y", ("/m",)),
        ('vllm serve /m --j "{\\"a\\": 1}"', ("/m", "--j", '{"a": 1}')),
        ("vllm serve /m --j '{\n  \"a\": 1}'", ("/m", "--j", '{\n  "a": 1}')),
        ("vllm serve /m --x a\\ b", ("/m", "--x", "a b")),
        ("P=/models\nvllm serve $P/a --x ${P}b", ("/models/a", "--x", "/modelsb")),
        ("vllm serve ${M:-/default} --x $UNKNOWN", ("/default", "--x", "$UNKNOWN")),
        ("vllm serve /m --x $(nproc --all)", ("/m", "--x", "$(nproc --all)")),
        ("P=1\nvllm serve /m --x '$P'", ("/m", "--x", "$P")),
        ('args=(\n  # why\n  --x 1\n  --y "a b"\n)\nvllm serve /m "${args[@]}"', ("/m", "--x", "1", "--y", "a b")),
    ],
)
def test_the_arguments_are_those_that_the_shell_would_give(text: str, arguments: tuple[str, ...]) -> None:
    assert only(text)[0] == arguments


def test_variables_are_those_that_the_engine_would_see() -> None:
    text = "export A=1 B='x y'\nC=2\nunset B\nD=3 vllm serve /m"
    assert only(text)[1] == {"A": "1", "C": "2", "D": "3"}


def test_a_variable_that_is_set_later_is_not_known_before() -> None:
    assert only("vllm serve /m --x $A\nA=1")[0] == ("/m", "--x", "$A")


def test_variables_of_a_container_count() -> None:
    text = "docker run --env=A=1 -e B=2 --env C=3 image vllm serve /m"
    assert only(text) == (("/m",), {"A": "1", "B": "2", "C": "3"})
    assert only("env A=1 vllm serve /m")[1] == {"A": "1"}


def test_several_lines_are_several() -> None:
    lines = serve_lines("vllm serve /a --port 1\nvllm serve /b --port 2\n")
    assert [line.arguments[0] for line in lines] == ["/a", "/b"]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("echo hello", "no `vllm serve`"),
        ("", "no `vllm serve`"),
        ("vllm serve '/m", "single quote has no end"),
        ('vllm serve "/m', "double quote has no end"),
        ("a=(--x 1\nvllm serve /m", "an array has no end"),
    ],
)
def test_what_cannot_be_read_is_told(text: str, told: str) -> None:
    with pytest.raises(LineUnreadableError, match=told):
        serve_lines(text)
