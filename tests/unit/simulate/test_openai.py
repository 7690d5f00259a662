"""The official client takes the simulated engine for an OpenAI server."""

from collections.abc import Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from kveik.config import SimEngineSettings
from kveik.simulate.server import SimServer

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Tell me about fjords."}]


@pytest.fixture
def engine() -> Iterator[SimServer]:
    with SimServer(SimEngineSettings(port=0, prefill_tokens_s=10_000, decode_s=0.001)) as running:
        yield running


@pytest.fixture
def client(engine: SimServer) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{engine.url}/v1", api_key="any", max_retries=0) as made:
        yield made


def test_models(client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == ["simulated"]


def test_a_chat_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.chat.completions.create(model="simulated", messages=MESSAGES, max_tokens=12, n=2)
    assert [choice.finish_reason for choice in whole.choices] == ["length", "length"]
    assert whole.usage is not None
    assert (whole.usage.completion_tokens, whole.usage.total_tokens - whole.usage.prompt_tokens) == (24, 24)
    text, usage = "", None
    with client.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=12, stream=True, stream_options={"include_usage": True}
    ) as stream:
        for chunk in stream:
            text += (chunk.choices[0].delta.content or "") if chunk.choices else ""
            usage = chunk.usage or usage
    assert text == whole.choices[0].message.content
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    assert usage.prompt_tokens_details.cached_tokens == 0  # shorter than a block


def test_log_probabilities(client: openai.OpenAI) -> None:
    chat = client.chat.completions.create(
        model="simulated", messages=MESSAGES, max_tokens=2, logprobs=True, top_logprobs=3
    )
    assert chat.choices[0].logprobs is not None
    found = chat.choices[0].logprobs.content or []
    assert [len(position.top_logprobs) for position in found] == [3, 3]
    assert all(position.logprob == position.top_logprobs[0].logprob for position in found)


def test_a_completion_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="simulated", prompt="Once", max_tokens=6)
    pieces = client.completions.create(model="simulated", prompt="Once", max_tokens=6, stream=True)
    assert "".join(piece.choices[0].text for piece in pieces) == whole.choices[0].text


def test_a_response_streamed_or_not(client: openai.OpenAI) -> None:
    whole = client.responses.create(model="simulated", input="Hello", max_output_tokens=6)
    assert whole.usage is not None
    assert (whole.status, whole.usage.output_tokens) == ("completed", 6)
    with client.responses.stream(model="simulated", input="Hello", max_output_tokens=6) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_response()
    assert final.output_text == whole.output_text
    assert kinds[0] == "response.created"
    assert kinds[-1] == "response.completed"
    assert kinds.count("response.output_text.delta") == 6


def test_embeddings(client: openai.OpenAI) -> None:
    packed = client.embeddings.create(model="simulated", input="Hello").data[0].embedding
    plain = client.embeddings.create(model="simulated", input="Hello", encoding_format="float").data[0].embedding
    assert packed == pytest.approx(plain)
    assert packed != pytest.approx(client.embeddings.create(model="simulated", input="Bye").data[0].embedding)


def test_errors_have_the_client_s_types(client: openai.OpenAI, engine: SimServer) -> None:
    with pytest.raises(openai.NotFoundError, match="The model `other` does not exist"):
        client.chat.completions.create(model="other", messages=MESSAGES)
    with pytest.raises(openai.BadRequestError, match="maximum context length"):
        client.completions.create(model="simulated", prompt="x" * 200_000)
    engine.change_faults(status=429, status_body={"error": {"message": "slow down"}})
    with pytest.raises(openai.RateLimitError, match="slow down"):
        client.chat.completions.create(model="simulated", messages=MESSAGES)


def test_a_stream_that_dies_is_an_error_for_the_client(client: openai.OpenAI, engine: SimServer) -> None:
    engine.change_faults(die_after_chunks=3, die_by="fin")
    stream = client.chat.completions.create(model="simulated", messages=MESSAGES, stream=True)
    with pytest.raises(openai.APIConnectionError):
        list(stream)


@pytest.mark.parametrize("kept", [True, False])
def test_leaving_a_stream_aborts_it(client: openai.OpenAI, engine: SimServer, kept: bool) -> None:
    settings = {"model": "simulated", "messages": MESSAGES, "max_tokens": 10_000, "extra_body": {"ignore_eos": True}}
    stream = client.chat.completions.create(stream=True, **settings)  # type: ignore[call-overload]
    next(iter(stream))
    stream.close()
    assert client.models.list().data  # the client goes on
    assert engine.seen.aborted_count == 1
