"""The facts of an engine's namespace: each one that shapes KV bytes changes it, names and paths do not."""

import copy
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="KV memory is torch tensors")
pytest.importorskip("vllm", reason="the facts are read from vLLM's configuration")

from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import get_hash_fn_by_name
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, SlidingWindowSpec
from vllm.v1.request import Request

from kveik.connector import identity
from kveik.connector.device import Plane
from kveik.connector.identity import config_digest, engine_facts, hash_seed, model_digest, worker_facts
from kveik.connector.layout import BlockLayout, group_specs
from kveik.errors import KveikError, LayoutRefusedError
from kveik.kv.namespace import Namespace
from kveik.simulate.block_hashes import VLLM_SEED, HashChain


class Config:
    """A stand-in for a Hugging Face configuration."""

    def __init__(self, **values: Any) -> None:
        self.values = {"model_type": "llama", "hidden_size": 64, "rope_theta": 1e4, "_name_or_path": "here", **values}

    def to_dict(self) -> dict[str, Any]:
        return dict(self.values)


def engine() -> Any:
    """The part of a VllmConfig that identifies a model's KV bytes."""
    return SimpleNamespace(
        model_config=SimpleNamespace(
            model="/models/llama",
            model_weights="",
            dtype=torch.bfloat16,
            hf_config=Config(),
            quantization=None,
            seed=0,
            revision=None,
            get_head_size=lambda: 64,
        ),
        cache_config=SimpleNamespace(
            cache_dtype="auto",
            prefix_caching_hash_algo="sha256",
            enable_prefix_caching=True,
            mamba_cache_dtype="auto",
            mamba_ssm_cache_dtype="auto",
            block_size=16,
        ),
        parallel_config=SimpleNamespace(
            tensor_parallel_size=1,
            pipeline_parallel_size=1,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
        ),
        attention_config=SimpleNamespace(backend=None),
        load_config=SimpleNamespace(load_format="auto"),
        speculative_config=None,
    )


def caches(layout: str = "LBNHC", **window: Any) -> KVCacheConfig:
    sizes = {"num_kv_heads": 2, "head_size": 64, "dtype": torch.bfloat16}
    spec = SlidingWindowSpec(16, **sizes, **window) if window else FullAttentionSpec(16, **sizes)
    return KVCacheConfig(
        num_blocks=8,
        kv_cache_tensors=[],
        kv_cache_groups=[KVCacheGroupSpec(["a", "b"], spec)],
        kv_cache_layout=layout,
    )


def facts(config: Any, kv: KVCacheConfig | None = None, hash_tokens: int = 16) -> dict[str, str]:
    cache = kv or caches()
    return engine_facts(config, cache, group_specs(config, cache), hash_tokens)


def namespace(config: Any, kv: KVCacheConfig | None = None, hash_tokens: int = 16) -> Namespace:
    return Namespace({**facts(config, kv, hash_tokens), "weights_digest": "w"})


@pytest.fixture(autouse=True)
def plain_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYTHONHASHSEED", raising=False)
    monkeypatch.delenv("VLLM_SSM_CONV_STATE_LAYOUT", raising=False)


def change(path: str, value: Any) -> Callable[[Any], None]:
    """Set ``a.b`` of a configuration."""

    def apply(config: Any) -> None:
        target, name = path.split(".")
        setattr(getattr(config, target), name, value)

    return apply


CHANGES = {
    "dtype": change("model_config.dtype", torch.float16),
    "kv_cache_dtype": change("cache_config.cache_dtype", "fp8_e4m3"),
    "hash_algorithm": change("cache_config.prefix_caching_hash_algo", "sha256_cbor"),
    "tensor_parallel_size": change("parallel_config.tensor_parallel_size", 2),
    "pipeline_parallel_size": change("parallel_config.pipeline_parallel_size", 2),
    "quantization": change("model_config.quantization", "awq"),
    "state_dtype": change("cache_config.mamba_ssm_cache_dtype", "float32"),
    "config_digest": change("model_config.hf_config", Config(rope_theta=1e6)),
}


@pytest.mark.parametrize("fact", CHANGES)
def test_each_fact_makes_another_namespace_and_is_named_in_the_difference(fact: str) -> None:
    changed = engine()
    CHANGES[fact](changed)
    one, other = namespace(engine()), namespace(changed)
    assert one.digest != other.digest
    assert any(difference.startswith(f"{fact} ") for difference in one.differences(other))


def test_layout_block_and_window_are_facts() -> None:
    digests = {
        namespace(engine()).digest,
        namespace(engine(), caches("LBHNC")).digest,
        namespace(engine(), caches(sliding_window=64)).digest,
        namespace(engine(), caches(sliding_window=128)).digest,
        namespace(engine(), hash_tokens=32).digest,
    }
    assert len(digests) == 5


def test_a_seed_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    digests = {namespace(engine()).digest}
    for seed in ("0", "1"):
        monkeypatch.setenv("PYTHONHASHSEED", seed)
        digests.add(namespace(engine()).digest)
    assert len(digests) == 3


def test_three_ways_to_hash_make_three_first_blocks_and_three_namespaces_and_the_difference_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A fleet with ``PYTHONHASHSEED=0``, without it, and with ``--prefix-caching-hash-algo sha256_cbor``."""
    prompt = [token % 1000 for token in range(600)]
    hashes, spaces = [], []
    for algorithm, seed in (("sha256", "0"), ("sha256", None), ("sha256_cbor", None)):
        if seed is None:
            monkeypatch.delenv("PYTHONHASHSEED", raising=False)
        else:
            monkeypatch.setenv("PYTHONHASHSEED", seed)
        function = get_hash_fn_by_name(algorithm)
        init_none_hash(function)
        hasher = get_request_block_hasher(16, function)
        request = Request("r", prompt, SamplingParams(max_tokens=1), None, block_hasher=hasher)
        hashes.append([bytes(one) for one in request.block_hashes])
        config = engine()
        config.cache_config.prefix_caching_hash_algo = algorithm
        spaces.append(namespace(config))
        chain = HashChain(algorithm, VLLM_SEED if seed is None else seed)
        assert hashes[-1][0] == chain.next(chain.root, prompt[:16]), "the simulated engine's are vLLM's"
    assert [len(one) for one in hashes] == [37, 37, 37]
    assert len({block for one in hashes for block in one}) == 3 * 37
    assert len({space.digest for space in spaces}) == 3
    a, b, c = spaces
    named = [
        [difference.split()[0] for difference in one.differences(other)] for one, other in ((a, b), (b, c), (a, c))
    ]
    assert named == [["hash_seed"], ["hash_algorithm"], ["hash_algorithm", "hash_seed"]]


def test_a_random_seed_is_refused_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    config = engine()
    config.cache_config.prefix_caching_hash_algo = "xxhash"
    with pytest.raises(LayoutRefusedError, match="set PYTHONHASHSEED to one value"):
        hash_seed(config)
    monkeypatch.setenv("PYTHONHASHSEED", "7")
    assert hash_seed(config)


def test_names_paths_and_library_versions_are_no_facts() -> None:
    renamed = engine()
    renamed.model_config.model = "/elsewhere"
    renamed.model_config.hf_config = Config(_name_or_path="there", transformers_version="9.9")
    assert config_digest(renamed) == config_digest(engine())
    assert namespace(renamed).digest == namespace(engine()).digest


def test_a_cache_dtype_that_is_automatic_is_the_models() -> None:
    explicit = engine()
    explicit.cache_config.cache_dtype = "bfloat16"
    assert namespace(explicit).digest == namespace(engine()).digest


def test_every_required_fact_is_there() -> None:
    assert namespace(engine()).facts["kv_cache_groups"] == "full, block 16, 2 layers, page 8192 bytes"


def test_the_layout_of_states_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    one = namespace(engine())
    monkeypatch.setenv("VLLM_SSM_CONV_STATE_LAYOUT", "DS")
    assert one.digest != namespace(engine()).digest


class TestWorkers:
    def layout(self, row_bytes: int = 4096) -> BlockLayout:
        return BlockLayout({0: (Plane(torch.zeros(2, 8, row_bytes, dtype=torch.uint8)),)}, torch.device("cpu"))

    def test_kernels_device_and_sizes_are_facts(self) -> None:
        found = worker_facts(engine(), self.layout())
        assert found["device"] == "cpu"
        assert found["cpu_kernels"]
        assert found["block_bytes"] == '{"0":[[2,4096]]}'
        assert found != worker_facts(engine(), self.layout(8192))

    def test_an_attention_backend_that_was_asked_for_is_a_fact(self) -> None:
        config = engine()
        config.attention_config.backend = SimpleNamespace(name="FLASHINFER")
        assert worker_facts(config, self.layout())["attention_backend"] == "FLASHINFER"


class TestModels:
    def model(self, folder: Path, content: bytes) -> str:
        folder.mkdir()
        (folder / "model.safetensors").write_bytes(content)
        return str(folder)

    @pytest.fixture(autouse=True)
    def own_cache(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(identity, "default_cache", lambda: tmp_path / "weights.json")

    def test_the_weights_decide(self, tmp_path: Path) -> None:
        digests = set()
        for name, content in (("one", b"1"), ("same", b"1"), ("other", b"2")):
            config = engine()
            config.model_config.model = self.model(tmp_path / name, content)
            digests.add(model_digest(config, sampled=False))
        assert len(digests) == 2

    def test_a_draft_model_counts_too(self, tmp_path: Path) -> None:
        config = engine()
        config.model_config.model = self.model(tmp_path / "target", b"1")
        without = model_digest(config, sampled=False)
        draft = copy.copy(config.model_config)
        draft.model = self.model(tmp_path / "draft", b"2")
        config.speculative_config = SimpleNamespace(draft_model_config=draft)
        assert model_digest(config, sampled=False).startswith(without + "+")

    def test_random_weights_are_identified_by_their_seed(self) -> None:
        config = engine()
        config.load_config.load_format = "dummy"
        one = model_digest(config, sampled=False)
        config.model_config.seed = 1
        assert one != model_digest(config, sampled=False)

    def test_a_model_whose_weights_are_nowhere_is_an_error_that_names_it(self) -> None:
        config = engine()
        config.model_config.model = "nobody/nothing"
        with pytest.raises(KveikError, match="cannot find the weights of 'nobody/nothing'"):
            model_digest(config, sampled=False)
