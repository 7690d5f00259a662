import pytest

from kveik.telemetry.redaction import HIDDEN, redacted, redacted_environment, tells


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("a key sk-kveik-abcDEF0123456789 was refused", "abcDEF0123456789"),
        ("HF_TOKEN=hf_abcdefghijklmnop", "abcdefghijklmnop"),
        ("Authorization: Bearer abc.def-ghi", "abc.def-ghi"),
        ('{"api_key": "very secret", "model": "m"}', "very secret"),
        ("--api-key hunter2 --port 8000", "hunter2"),
        ("--api-key=hunter2", "hunter2"),
        ("KVEIK_ADMISSION_TOKEN=s3cr3t-words", "s3cr3t-words"),
        ("redis://user:hunter2@10.0.0.1:6379/0", "hunter2"),
        ("https://hooks.example/x?token=hunter2&b=1", "hunter2"),
        ("password: hunter2", "hunter2"),
        ("eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxIn0.c2lnbmF0dXJl", "eyJzdWIiOiIxIn0"),
        ("cache_salt='tenant-7'", "tenant-7"),
    ],
)
def test_what_looks_like_a_secret_is_hidden(text: str, secret: str) -> None:
    assert secret not in redacted(text)
    assert HIDDEN in redacted(text)


@pytest.mark.parametrize(
    "text",
    [
        "engine engine-1 is hung: no token for 12.0 s, 3 requests wait",
        "--max-model-len 8192 --port 8000",
        "prompt_tokens: 512, output_tokens: 4",
        "http://10.0.0.7:8000/v1/models",
        "KeyError: 'block 17'",
        "vllm:generation_tokens_total 5120.0",
    ],
)
def test_what_people_need_stays(text: str) -> None:
    assert redacted(text) == text


def test_the_rest_of_a_line_stays_readable() -> None:
    assert redacted("serve --api-key hunter2 --port 8000") == f"serve --api-key {HIDDEN} --port 8000"
    assert redacted('{"api_key": "x y", "model": "m"}') == f'{{"api_key": {HIDDEN}, "model": "m"}}'


def test_variables_are_hidden_by_their_names() -> None:
    shown = redacted_environment(
        {
            "VLLM_API_KEY": "abc",
            "AWS_SECRET_ACCESS_KEY": "abc",
            "DB_PASSWORD": "abc",
            "HTTPS_PROXY": "http://me:abc@proxy:3128",
            "PATH": "/usr/bin",
            "PYTHONHASHSEED": "0",
        }
    )
    assert "abc" not in str(shown)
    assert shown["PATH"] == "/usr/bin"
    assert shown["PYTHONHASHSEED"] == "0"


@pytest.mark.parametrize("name", ["max_model_tokens", "min_hit_tokens", "prefill_tokens_s", "tokenizer", "hash_seed"])
def test_names_of_numbers_of_tokens_are_no_secrets(name: str) -> None:
    assert not tells(name)
