"""What the namespace leaves to vLLM's block hashes is in them: salt, adapter, multimodal input, prompt embeddings."""

from typing import Any

import pytest

pytest.importorskip("vllm", reason="the hashes are vLLM's")
torch = pytest.importorskip("torch")

from vllm.lora.request import LoRARequest
from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

TOKENS = list(range(1, 65))
BLOCK = 16


def hashes(algorithm: str = "sha256", tokens: list[int] | None = None, **extras: Any) -> list[bytes]:
    function = get_hash_fn_by_name(algorithm)
    init_none_hash(function)
    hasher = get_request_block_hasher(BLOCK, function)
    prompt = None if "prompt_embeds" in extras else tokens or TOKENS
    return [
        bytes(h)
        for h in Request("r", prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher, **extras).block_hashes
    ]


def image(identifier: str, offset: int) -> list[MultiModalFeatureSpec]:
    return [MultiModalFeatureSpec(None, "image", identifier, PlaceholderRange(offset=offset, length=8))]


def common(one: list[bytes], other: list[bytes]) -> int:
    """How many leading blocks two requests share."""
    return next((index for index, pair in enumerate(zip(one, other, strict=True)) if pair[0] != pair[1]), len(one))


def test_equal_requests_have_equal_hashes() -> None:
    assert hashes() == hashes()
    assert len(hashes()) == 4


def test_a_hash_covers_all_tokens_before_it() -> None:
    changed = [*TOKENS[:20], 999, *TOKENS[21:]]
    assert common(hashes(), hashes(tokens=changed)) == 1
    assert len(set(hashes()) & set(hashes(tokens=changed))) == 1


def test_salts_share_nothing() -> None:
    assert common(hashes(cache_salt="a"), hashes(cache_salt="b")) == 0
    assert common(hashes(cache_salt="a"), hashes()) == 0


@pytest.mark.parametrize("other", [("y", 1, "/p"), ("x", 1, "/q")], ids=["name", "path"])
def test_adapters_share_nothing(other: tuple[str, int, str]) -> None:
    one = hashes(lora_request=LoRARequest("x", 1, "/p"))
    assert common(one, hashes(lora_request=LoRARequest(*other))) == 0
    assert common(one, hashes()) == 0


def test_images_separate_from_the_block_they_lie_in() -> None:
    one = hashes(mm_features=image("cat", 32))
    assert common(one, hashes(mm_features=image("dog", 32))) == 2
    assert common(one, hashes(mm_features=image("cat", 36))) == 2


def test_prompt_embeddings_are_hashed_by_content() -> None:
    zeros, ones = torch.zeros(64, 4), torch.ones(64, 4)
    assert common(hashes(prompt_embeds=zeros), hashes(prompt_embeds=zeros)) == 4
    assert common(hashes(prompt_embeds=zeros), hashes(prompt_embeds=ones)) == 0


def test_algorithms_share_nothing() -> None:
    assert common(hashes("sha256"), hashes("sha256_cbor")) == 0


def test_the_seed_changes_every_hash(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    without = hashes()
    monkeypatch.setenv("PYTHONHASHSEED", "0")
    assert common(hashes(), without) == 0
