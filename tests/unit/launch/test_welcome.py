"""The request that people paste."""

import json
import shlex
from pathlib import Path

from kveik.launch.welcome import example, has_chat_template, welcome

URL = "http://127.0.0.1:8100"


def pasted(request: str) -> tuple[list[str], dict[str, object]]:
    words = shlex.split(request)
    return words, json.loads(words[words.index("-d") + 1])


def test_a_model_with_a_chat_template_is_asked_in_a_chat() -> None:
    words, body = pasted(example(URL, "it's-a-model", chat=True, key=False))
    assert words[:2] == ["curl", f"{URL}/v1/chat/completions"]
    assert body["model"] == "it's-a-model"
    assert body["messages"]


def test_another_model_goes_on_with_a_text() -> None:
    words, body = pasted(example(URL, "m", chat=False, key=False))
    assert words[1] == f"{URL}/v1/completions"
    assert body["prompt"]


def test_a_router_with_keys_is_shown_one() -> None:
    words, _ = pasted(example(URL, "m", chat=False, key=True))
    assert "authorization: Bearer YOUR-KEY" in words


def test_people_are_told_address_request_logs_and_how_to_end_it(tmp_path: Path) -> None:
    text = "\n".join(welcome(URL, "curl X", Path("/logs"), config=tmp_path / "my fleet.toml", detached=True))
    for words in (f"ready at {URL}", "  curl X", f"{URL}/dashboard", "/logs", "kveik down --config '"):
        assert words in text
    assert "Ctrl-C" in "\n".join(welcome(URL, "", Path("/l"), config=Path("kveik.toml"), detached=False))


def test_the_file_need_not_be_named_where_it_is_found_anyway() -> None:
    text = "\n".join(welcome(URL, "", Path("/l"), config=Path.cwd() / "kveik.toml", detached=True))
    assert "--config" not in text


def test_chat_templates_are_found_in_both_of_their_places(tmp_path: Path) -> None:
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{}")
    assert not has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "x"}')
    assert has_chat_template(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text("{")
    assert not has_chat_template(tmp_path)
    (tmp_path / "chat_template.jinja").write_text("x")
    assert has_chat_template(tmp_path)
