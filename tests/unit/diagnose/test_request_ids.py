"""The client's id in those that vLLM makes of it."""

import pytest

from kveik.diagnose.request_ids import client_id, is_of


@pytest.mark.parametrize(
    ("engines", "clients"),
    [
        ("chatcmpl-7f3a-12-0123abcd", "7f3a-12"),
        ("cmpl-7f3a-0-0123abcd", "7f3a"),
        ("2_chatcmpl-7f3a-0123abcd", "7f3a"),
        ("3-0123abcd", "3"),
        ("resp_11aa22bb_0-0123abcd", "resp_11aa22bb_0"),
        ("something else", "something else"),
    ],
)
def test_the_clients_id_is_found_in_the_engines(engines: str, clients: str) -> None:
    assert client_id(engines) == clients


@pytest.mark.parametrize("asked", ["7f3a", "cmpl-7f3a", "cmpl-7f3a-1", "cmpl-7f3a-1-0123abcd"])
def test_a_request_is_named_by_the_clients_id_the_answers_or_the_engines(asked: str) -> None:
    assert is_of("cmpl-7f3a-1-0123abcd", asked)


@pytest.mark.parametrize("asked", ["7f3", "f3a", "cmpl", "0123abcd", "1", ""])
def test_parts_of_an_id_name_nothing(asked: str) -> None:
    assert not is_of("cmpl-7f3a-1-0123abcd", asked)
