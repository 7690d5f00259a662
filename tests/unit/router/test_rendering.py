"""Bodies become the tokens that engines make of them, whatever way they are written."""

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer

from kveik.errors import RenderError
from kveik.router import tokenization
from kveik.router.chat_template import ChatTemplate
from kveik.router.conversation import Conversation
from kveik.router.facts import TokenPrompt
from kveik.router.model_folder import Rendering
from kveik.router.rendering import Unfinished, given_ids
from kveik.router.tokenization import Tokenization
from kveik.router.tokenizer import TokenizerFiles
from tests.model_folders import CHATML, PARTS, STRICT, make_model_folder

CHAT, TEXT, RESPONSES, MESSAGES = b"/v1/chat/completions", b"/v1/completions", b"/v1/responses", b"/v1/messages"
USER = {"role": "user", "content": "When is high water?"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("models")
    templates = {"chatml": CHATML, "parts": PARTS, "strict": STRICT, "none": None}
    return {name: make_model_folder(base / name, template) for name, template in templates.items()}


@pytest.fixture(scope="module")
def renderings(folders: dict[str, Path]) -> dict[str, Rendering]:
    return {name: Rendering(folder, TokenizerFiles()) for name, folder in folders.items()}


def text(rendering: Rendering, target: bytes, **members: Any) -> str:
    """What a body is rendered to, read back from its tokens."""
    prompt = rendering.prompt(target, json.dumps(members).encode())
    ids = array("I", prompt.packed).tolist()
    whole = Tokenizer.from_file(str(rendering.folder / "tokenizer.json"))
    return str(whole.decode(ids, skip_special_tokens=False))


# -- chats --------------------------------------------------------------------------------------


def test_a_chat_is_rendered_by_the_models_template(renderings: dict[str, Rendering]) -> None:
    rendered = text(renderings["chatml"], CHAT, messages=[{"role": "system", "content": "Be brief."}, USER])
    assert rendered == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nWhen is high water?<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_parts_become_text_for_templates_of_text_and_text_becomes_parts_for_others(
    renderings: dict[str, Rendering],
) -> None:
    parts = [{"type": "text", "text": "Be brief."}, "Be kind."]
    messages = [{"role": "system", "content": parts}, USER]
    assert "<|im_start|>system\nBe brief.\nBe kind.<|im_end|>" in text(renderings["chatml"], CHAT, messages=messages)
    assert text(renderings["parts"], CHAT, messages=messages) == (
        "[system]<Be brief.><Be kind.>[user]<When is high water?>[assistant]"
    )


def test_an_answer_without_content_is_empty(renderings: dict[str, Rendering]) -> None:
    messages = [USER, {"role": "assistant", "content": None}, {"role": "assistant"}, USER]
    assert text(renderings["chatml"], CHAT, messages=messages).count("assistant\n<|im_end|>") == 2


def test_tools_are_written_as_the_engine_writes_them(renderings: dict[str, Rendering]) -> None:
    tool = {"function": {"parameters": {"b": 1, "a": {}}, "name": "tide", "extra": 1}, "type": "function", "x": 2}
    rendered = text(renderings["chatml"], CHAT, messages=[USER], tools=[tool])
    assert (
        '[{"type": "function", "function": {"name": "tide", "description": null, "parameters": {"b": 1, "a": {}}}}]'
        in rendered
    )
    strict = {**tool, "function": {"name": "tide", "strict": True}, "defer_loading": False}
    rendered = text(renderings["chatml"], CHAT, messages=[USER], tools=[strict])
    assert '"parameters": null, "strict": true, "defer_loading": false}, "defer_loading": false}' in rendered


@pytest.mark.parametrize(
    ("arguments", "shown"),
    [
        ('{"b": 1, "a": "é"}', '{"b": 1, "a": "é"}'),
        ("", "{}"),
        ("[1]", "{}"),
        ("{broken", "{}"),
        ({"a": 1}, '{"a": 1}'),
    ],
)
def test_arguments_of_calls_are_given_to_templates_as_objects(
    renderings: dict[str, Rendering], arguments: object, shown: str
) -> None:
    call = {"id": "1", "type": "function", "function": {"name": "tide", "arguments": arguments}}
    messages = [
        USER,
        {"role": "assistant", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "6"},
    ]
    assert f"tide {shown}<|im_end|>" in text(renderings["chatml"], CHAT, messages=messages)


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
def test_reasoning_is_given_under_both_of_its_names(renderings: dict[str, Rendering], name: str) -> None:
    messages = [USER, {"role": "assistant", "content": "Six.", name: "The moon is full."}, USER]
    assert "<think>The moon is full.</think>Six." in text(renderings["chatml"], CHAT, messages=messages)


def test_options_reach_the_template(renderings: dict[str, Rendering]) -> None:
    chatml = renderings["chatml"]
    assert text(chatml, CHAT, messages=[USER], add_generation_prompt=False).endswith("high water?<|im_end|>\n")
    assert "thinking False" in text(chatml, CHAT, messages=[USER], chat_template_kwargs={"enable_thinking": False})
    assert "thinking True" in text(chatml, CHAT, messages=[USER], reasoning_effort="low")
    assert "thinking False" in text(chatml, CHAT, messages=[USER], reasoning_effort="none")


def test_developers_speak_as_system_where_a_template_does_not_know_them(renderings: dict[str, Rendering]) -> None:
    messages = [{"role": "system", "content": "One."}, USER, {"role": "developer", "content": "Two."}]
    assert (
        text(renderings["strict"], CHAT, messages=messages) == "<|begin|>[system]One.\n\nTwo.[user]When is high water?"
    )


def test_a_header_that_changes_with_every_request_is_left_out_as_engines_do(renderings: dict[str, Rendering]) -> None:
    header = "x-anthropic-billing-header: cch=1234"
    for content in (f"{header}\nBe brief.", [{"type": "text", "text": header}, {"type": "text", "text": "Be brief."}]):
        rendered = text(renderings["chatml"], CHAT, messages=[{"role": "system", "content": content}, USER])
        assert "system\nBe brief.<|im_end|>" in rendered


# -- other endpoints ----------------------------------------------------------------------------


def test_a_prompt_is_tokenized_as_it_is_with_the_tokenizers_own_tokens(tmp_path: Path) -> None:
    rendering = Rendering(make_model_folder(tmp_path, begin_token=True), TokenizerFiles())
    assert text(rendering, TEXT, prompt="Hello") == "<|begin|>Hello"
    assert text(rendering, TEXT, prompt=["Hello"]) == "<|begin|>Hello"
    assert text(rendering, TEXT, prompt="Hello", add_special_tokens=False) == "Hello"
    assert text(rendering, CHAT, messages=[USER]).startswith("<|im_start|>")
    assert text(rendering, RESPONSES, input="Hello").startswith("<|begin|><|im_start|>")


def test_token_ids_are_taken_as_they_are_and_need_no_model(renderings: dict[str, Rendering]) -> None:
    body = json.dumps({"prompt": [5, 6, 7], "cache_salt": "tenant"}).encode()
    for prompt in (given_ids(TEXT, body), renderings["none"].begin(TEXT, body)):
        assert isinstance(prompt, TokenPrompt)
        assert (array("I", prompt.packed).tolist(), prompt.salt, prompt.rendering) == ([5, 6, 7], "tenant", "")
    assert array("I", given_ids(TEXT, b'{"prompt":[[8,9]]}').packed).tolist() == [8, 9]
    with pytest.raises(RenderError):
        given_ids(TEXT, b'{"prompt":"text"}')


def test_a_response_is_the_same_conversation_as_a_chat(renderings: dict[str, Rendering]) -> None:
    chatml = renderings["chatml"]
    assert text(chatml, RESPONSES, input="When is high water?") == text(chatml, CHAT, messages=[USER])
    items = [
        USER,
        {"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Moon."}], "summary": []},
        {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Six."}]},
        {"type": "function_call", "call_id": "c", "name": "tide", "arguments": '{"a": 1}'},
        {"type": "function_call_output", "call_id": "c", "output": "06:12"},
        {"role": "user", "content": [{"type": "input_text", "text": "And low?"}]},
    ]
    call = {"id": "c", "type": "function", "function": {"name": "tide", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief."},
        USER,
        {"role": "assistant", "reasoning": "Moon.", "content": "Six.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c", "content": "06:12"},
        {"role": "user", "content": "And low?"},
    ]
    assert text(chatml, RESPONSES, instructions="Be brief.", input=items) == text(chatml, CHAT, messages=messages)
    flat = {"type": "function", "name": "tide", "parameters": {"type": "object"}, "strict": True}
    nested = {"type": "function", "function": {name: flat[name] for name in ("name", "parameters", "strict")}}
    assert text(chatml, RESPONSES, input="Hi", tools=[flat, {"type": "web_search"}]) == text(
        chatml, CHAT, messages=[{"role": "user", "content": "Hi"}], tools=[nested]
    )


def test_a_message_body_is_the_same_conversation_as_a_chat(renderings: dict[str, Rendering]) -> None:
    chatml = renderings["chatml"]
    body = {
        "system": [
            {"type": "text", "text": "x-anthropic-billing-header: cch=1"},
            {"type": "text", "text": "Be brief. "},
            {"type": "text", "text": "Be kind.", "cache_control": {"type": "ephemeral"}},
        ],
        "messages": [
            USER,
            {"role": "assistant", "content": [
                {"type": "thinking", "thinking": "Moon.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t", "name": "tide", "input": {"a": 1}},
            ]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": [
                {"type": "text", "text": "06:12"}, {"type": "text", "text": "18:40"}]}]},
            {"role": "user", "content": [{"type": "text", "text": "So?"}]},
        ],
        "tools": [{"name": "tide", "description": "High water.", "input_schema": {"properties": {}}}],
    }  # fmt: skip
    call = {"id": "t", "type": "function", "function": {"name": "tide", "arguments": '{"a": 1}'}}
    messages = [
        {"role": "system", "content": "Be brief. Be kind."},
        USER,
        {"role": "assistant", "reasoning": "Moon.", "content": "Let me see.", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "t", "content": "06:12\n18:40"},
        {"role": "user", "content": "So?"},
    ]
    function = {"name": "tide", "description": "High water.", "parameters": {"properties": {}, "type": "object"}}
    tools = [{"type": "function", "function": function}]
    assert text(chatml, MESSAGES, **body) == text(chatml, CHAT, messages=messages, tools=tools)


def test_later_system_messages_move_to_the_front_where_the_template_wants_it(renderings: dict[str, Rendering]) -> None:
    body = {"system": "One. ", "messages": [USER, {"role": "system", "content": "Two."}, USER]}
    assert text(renderings["strict"], MESSAGES, **body).startswith("<|begin|>[system]One. Two.[user]")
    assert "high water?<|im_end|>\n<|im_start|>system\nTwo.<|im_end|>" in text(renderings["chatml"], MESSAGES, **body)


# -- what is not rendered -----------------------------------------------------------------------

IMAGE = {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}


@pytest.mark.parametrize(
    ("target", "members"),
    [
        (b"/v1/embeddings", {"input": "a"}),
        (CHAT, {"messages": [IMAGE]}),
        (CHAT, {"messages": [USER], "chat_template": "x"}),
        (CHAT, {"messages": [USER], "chat_template_kwargs": {"chat_template": "x"}}),
        (CHAT, {"messages": [USER], "continue_final_message": True, "add_generation_prompt": False}),
        (CHAT, {"messages": [USER], "truncate_prompt_tokens": 5}),
        (CHAT, {"messages": [USER], "cache_salt": 5}),
        (CHAT, {"messages": "no list"}),
        (CHAT, {"messages": [{"role": "user", "content": 5}]}),
        (CHAT, {"messages": [{"content": "without a role"}]}),
        (CHAT, {}),
        (TEXT, {"prompt": ["two", "prompts"]}),
        (TEXT, {"prompt": "a", "suffix": "b"}),
        (TEXT, {"prompt": "a", "prompt_logprobs": 0}),
        (TEXT, {"prompt": "a", "echo": True, "logprobs": 1}),
        (TEXT, {"prompt": [-1]}),
        (TEXT, {"prompt": [True]}),
        (TEXT, {"prompt": []}),
        (TEXT, {"prompt_embeds": "xx", "prompt": "a"}),
        (RESPONSES, {"input": "a", "previous_response_id": "r"}),
        (RESPONSES, {"input": [{"type": "item_reference", "id": "i"}]}),
        (RESPONSES, {"input": [USER, {"role": "assistant", "content": "a", "status": "incomplete"}]}),
        (RESPONSES, {"input": "a", "tools": [{"type": "custom", "name": "c"}]}),
        (MESSAGES, {"messages": [USER], "thinking": {"type": "disabled"}}),
        (MESSAGES, {"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}),
    ],
)
def test_prompts_that_only_the_engine_knows_are_not_guessed(
    renderings: dict[str, Rendering], target: bytes, members: dict[str, Any]
) -> None:
    with pytest.raises(RenderError):
        renderings["chatml"].prompt(target, json.dumps(members).encode())


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([CHAT, TEXT, RESPONSES, MESSAGES]), st.recursive(
    st.none() | st.booleans() | st.integers(-2, 5) | st.sampled_from(["", "user", "text", "message", "function_call"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(
        st.sampled_from(["messages", "prompt", "input", "role", "content", "type", "text", "tools", "function",
                         "tool_calls", "system", "reasoning", "chat_template_kwargs", "thinking"]), inner, max_size=4),
    max_leaves=12,
))  # fmt: skip
def test_whatever_a_body_holds_is_rendered_or_refused(
    renderings: dict[str, Rendering], target: bytes, body: object
) -> None:
    try:
        assert isinstance(renderings["chatml"].prompt(target, json.dumps(body).encode()), TokenPrompt)
    except RenderError:
        pass


def test_a_template_cannot_reach_beyond_its_variables() -> None:
    template = ChatTemplate("{{ ''.__class__.__mro__[1].__subclasses__() }}", {})
    with pytest.raises(RenderError, match="template failed"):
        template.render(Conversation([USER]))
    with pytest.raises(RenderError, match="cannot be compiled"):
        ChatTemplate("{% for %}", {})


# -- folders ------------------------------------------------------------------------------------


def test_a_folder_without_a_template_renders_prompts_but_no_chats(renderings: dict[str, Rendering]) -> None:
    assert text(renderings["none"], TEXT, prompt="Hello") == "Hello"
    with pytest.raises(RenderError, match="no chat template"):
        text(renderings["none"], CHAT, messages=[USER])


def test_templates_are_found_in_the_configuration_too_one_for_tools_apart(tmp_path: Path) -> None:
    folder = make_model_folder(tmp_path, None)
    templates = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "with tools"}]
    for written, plain, tools in ((templates, "plain", "with tools"), ("plain", "plain", "plain")):
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": written}))
        rendering = Rendering(folder, TokenizerFiles())
        assert text(rendering, CHAT, messages=[USER]) == plain
        assert text(rendering, CHAT, messages=[USER], tools=[{"function": {"name": "f"}}]) == tools


def test_folders_have_equal_fingerprints_only_if_they_render_alike(
    folders: dict[str, Path], renderings: dict[str, Rendering]
) -> None:
    assert len({rendering.fingerprint for rendering in renderings.values()}) == 4
    assert Rendering(folders["chatml"], TokenizerFiles()).fingerprint == renderings["chatml"].fingerprint


def test_a_folder_that_has_no_tokenizer_is_told(tmp_path: Path) -> None:
    with pytest.raises(RenderError, match="no tokenizer in"):
        Rendering(tmp_path, TokenizerFiles())
    folder = make_model_folder(tmp_path)
    (folder / "tokenizer_config.json").write_text("{")
    with pytest.raises(RenderError, match="not valid JSON"):
        Rendering(folder, TokenizerFiles())


# -- tokens -------------------------------------------------------------------------------------


def test_pieces_together_are_the_tokens_of_the_whole_text(folders: dict[str, Path]) -> None:
    tokens = Tokenization(folders["chatml"] / "tokenizer.json", TokenizerFiles())
    whole = Tokenizer.from_file(str(folders["chatml"] / "tokenizer.json"))
    texts = [
        "",
        "<|im_start|>",
        "a<|im_end|>\n<|im_start|> b",
        "<|im_start|><|im_start|>",
        "中<|im_end|>👩‍👩‍👧‍👦",
        "<|im_",
        "\n\n",
    ]
    for sample in [*texts, "".join(texts)]:
        assert tokens.ids(sample) == whole.encode(sample, add_special_tokens=False).ids, sample


def test_what_a_conversation_had_before_is_not_tokenized_again(folders: dict[str, Path]) -> None:
    rendering = Rendering(folders["chatml"], TokenizerFiles())
    messages = [USER, {"role": "assistant", "content": "Six. " * 50}]

    def missing(*more: dict[str, str]) -> int:
        begun = rendering.begin(CHAT, json.dumps({"messages": [*messages, *more]}).encode())
        assert isinstance(begun, Unfinished)
        rendering.encode(begun)
        assert len(rendering.finish(begun)) > 50
        return begun.missing_chars

    assert missing() > 250
    assert missing() == 0
    assert missing({"role": "user", "content": "And low?"}) == len("user\nAnd low?")


def test_remembered_pieces_are_bounded_and_those_in_use_stay(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tokenization, "REMEMBERED_BYTES", 40_000)
    tokens = Tokenization(folders["chatml"] / "tokenizer.json", TokenizerFiles())

    def missing(sample: str) -> int:
        draft = tokens.draft(sample, special_tokens=False)
        tokens.remember(draft, tokens.encode(draft))
        return draft.missing_chars

    assert missing("in use") == 6
    for number in range(300):
        assert missing(f"once {number}") > 0
        assert missing("in use") == 0
    assert len(tokens._pieces) + len(tokens._older) < 160
    assert missing("once 3") > 0
