import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kveik.clock import FakeClock
from kveik.errors import ConfigError, RegistryError
from kveik.fleet.embedded import EmbeddedRegistry
from kveik.fleet.lifecycle import Event
from kveik.fleet.member_file import MemberFile
from kveik.router import fleet_api
from kveik.router.fleet_api import Admission, FleetAdmin, FleetApi, is_loopback, read_token

ONE: dict[str, Any] = {"url": "http://10.0.0.1:8000", "engine_id": "e1", "models": ["qwen3-8b"], "namespace": "abcd"}
CLOCK = FakeClock()


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[EmbeddedRegistry]:
    registry = EmbeddedRegistry(MemberFile(tmp_path / "run" / "fleet.json"), clock=CLOCK, ticking=False)
    yield registry
    registry.close()


@pytest.fixture
def api(registry: EmbeddedRegistry) -> FleetApi:
    return FleetApi(registry, CLOCK)


def ask(api: FleetApi, method: str, path: str, body: object = None) -> tuple[int, dict[str, Any]]:
    raw = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = api.handle(method, path, "", {}, raw, True)
    return status, json.loads(answer)


def test_an_engine_announces_itself_renews_and_leaves(api: FleetApi) -> None:
    status, shown = ask(api, "POST", "/fleet/engines", ONE)
    assert (status, shown["engine_id"], shown["state"], shown["heartbeat_s"]) == (201, "e1", "announced", 5.0)
    assert ask(api, "POST", "/fleet/engines", ONE)[0] == 200
    CLOCK.advance(4.0)
    assert ask(api, "GET", "/fleet/engines/e1")[1]["lease_left_s"] == 11.0
    status, shown = ask(api, "PUT", "/fleet/engines/e1/heartbeat")
    assert (status, shown["lease_left_s"]) == (200, 15.0)
    status, listing = ask(api, "GET", "/fleet/engines")
    assert (status, [e["engine_id"] for e in listing["data"]], listing["revision"]) == (200, ["e1"], 1)
    assert ask(api, "DELETE", "/fleet/engines/e1") == (
        200,
        {"engine_id": "e1", "object": "fleet.engine.deleted", "deleted": True},
    )
    assert ask(api, "GET", "/fleet/engines")[1]["data"] == []


def test_an_engine_is_drained_isolated_and_readmitted_with_reasons(api: FleetApi, registry: EmbeddedRegistry) -> None:
    ask(api, "POST", "/fleet/engines", ONE)
    registry.change_state("e1", Event.PROVE, "it answered")
    for action, state in (("drain", "draining"), ("isolate", "isolated")):
        status, shown = ask(api, "POST", f"/fleet/engines/e1/{action}", {"reason": f"to {action}\n it"})
        assert (status, shown["state"], shown["why"]) == (200, state, f"to {action} it")
    status, shown = ask(api, "POST", "/fleet/engines/e1/readmit")
    assert (status, shown["state"]) == (200, "announced")


def test_a_name_made_of_host_and_port_may_be_written_plain_or_escaped(api: FleetApi) -> None:
    ask(api, "POST", "/fleet/engines", {"url": "http://10.0.0.1:8000"})
    for path in ("10.0.0.1:8000", "10.0.0.1%3A8000", "10.0.0.1:8000/"):
        assert ask(api, "GET", f"/fleet/engines/{path}")[0] == 200


@pytest.mark.parametrize(
    ("body", "param", "message"),
    [
        (b"", "", "the body is no JSON"),
        (b"{", "", "the body is no JSON"),
        (b"\xff\xfe", "", "the body is no JSON"),
        (b"[" * 60_000, "", "the body is no JSON"),
        ([1], "", "the body is a list, expected an object"),
        ({}, "", "the announcement missing required field `url`"),
        ({**ONE, "url": 7}, "url", "url is 7: expected `str`, got `int`"),
        ({**ONE, "url": "10.0.0.1"}, "url", "url is '10.0.0.1', expected http://HOST:PORT without a path"),
        ({**ONE, "models": "qwen"}, "models", 'models is "qwen": expected `array`, got `str`'),
        ({**ONE, "models": ["a", None]}, "models[1]", "models[1] is null: expected `str`, got `null`"),
        ({**ONE, "models": ["a\nb"]}, "a text in models", "a text in models is 'a\\nb', expected 1 to 256 printable"),
        ({**ONE, "lease_s": 0.1}, "lease_s", "lease_s is 0.1, expected 1 to 3600 s, or 0 for none"),
        ({**ONE, "lease_s": True}, "lease_s", "lease_s is true: expected `float`, got `bool`"),
        ({**ONE, "block_tokens": 1.5}, "block_tokens", "block_tokens is 1.5: expected `int`, got `float`"),
        ({**ONE, "name": "x"}, "name", "'name' is no field of an announcement; known are url, engine_id"),
        ({**ONE, "labels": {"a": 1}}, "labels[...]", "labels[...] is"),
    ],
)
def test_an_announcement_that_is_wrong_is_told_field_value_and_what_was_expected(
    api: FleetApi, body: object, param: str, message: str
) -> None:
    status, answer = ask(api, "POST", "/fleet/engines", body if isinstance(body, bytes) else json.dumps(body).encode())
    assert status == 400
    error = answer["error"]
    assert message in error["message"]
    assert (error["type"], error["param"] or "") == ("invalid_request_error", param)
    assert ask(api, "GET", "/fleet/engines")[1]["data"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "message"),
    [
        ("GET", "/fleet/engines/e9", None, 404, "no engine 'e9' in the fleet"),
        ("PUT", "/fleet/engines/e9/heartbeat", None, 404, "has to announce itself (again)"),
        ("DELETE", "/fleet/engines/e9", None, 404, "no engine 'e9'"),
        ("POST", "/fleet/engines/e9/drain", {"reason": "x"}, 404, "no engine 'e9'"),
        ("POST", "/fleet/engines/e1/drain", None, 400, "the body is no JSON"),
        ("POST", "/fleet/engines/e1/drain", {}, 400, 'reason is "", expected text of 1 to 500 characters'),
        ("POST", "/fleet/engines/e1/isolate", {"reason": 7}, 400, "reason is 7, expected text"),
        ("POST", "/fleet/engines/e1/isolate", {"reason": "x" * 501}, 400, "expected text of 1 to 500 characters"),
        ("POST", "/fleet/engines/e1/drain", {"why": "x"}, 400, "'why' is not known here, expected reason only"),
        ("POST", "/fleet/engines/e1/restart", {"reason": "x"}, 404, "no such path"),
        ("POST", "/fleet/enginesx", None, 404, "no such path"),
        ("GET", "/fleet/engines/e1/drain", None, 405, "GET is not possible here, expected POST"),
        ("PATCH", "/fleet/engines", None, 405, "PATCH is not possible here, expected GET or POST"),
        ("POST", "/fleet/engines", {**ONE, "engine_id": "e2"}, 409, "the address http://10.0.0.1:8000 belongs to"),
        ("POST", "/fleet/engines", {**ONE, "url": "http://10.0.0.2:1"}, 409, "the name 'e1' belongs to engine 'e1'"),
        ("POST", "/fleet/engines", b" " * (65 << 10), 413, "expected 65536 at most"),
    ],
)
def test_what_cannot_be_done_is_said_in_openai_s_shape(
    api: FleetApi, method: str, path: str, body: object, status: int, message: str
) -> None:
    ask(api, "POST", "/fleet/engines", ONE)
    got, answer = ask(api, method, path, body)
    assert got == status
    assert message in answer["error"]["message"]
    assert set(answer["error"]) == {"message", "type", "param", "code"}


def test_an_isolated_engine_is_not_drained(api: FleetApi) -> None:
    ask(api, "POST", "/fleet/engines", ONE)
    ask(api, "POST", "/fleet/engines/e1/isolate", {"reason": "hung"})
    status, answer = ask(api, "POST", "/fleet/engines/e1/drain", {"reason": "update"})
    assert (status, answer["error"]["code"]) == (409, "refused")


def test_an_isolated_engine_that_is_taken_out_stays_isolated_and_the_answer_says_so(api: FleetApi) -> None:
    ask(api, "POST", "/fleet/engines", ONE)
    ask(api, "POST", "/fleet/engines/e1/isolate", {"reason": "hung"})
    status, answer = ask(api, "DELETE", "/fleet/engines/e1")
    assert (status, answer["deleted"], answer["state"], answer["why"]) == (200, False, "isolated", "hung")
    assert ask(api, "POST", "/fleet/engines/e1/readmit")[1]["state"] == "lost"
    assert ask(api, "DELETE", "/fleet/engines/e1")[1]["deleted"]


def test_a_registry_that_is_away_is_a_503_and_the_last_list_is_still_shown(
    registry: EmbeddedRegistry, api: FleetApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(api, "POST", "/fleet/engines", ONE)

    def away(name: str) -> None:
        raise RegistryError("etcd does not answer")

    monkeypatch.setattr(registry, "renew", away)
    registry.trouble = "etcd does not answer"
    status, answer = ask(api, "PUT", "/fleet/engines/e1/heartbeat")
    assert (status, answer["error"]["code"]) == (503, "registry_unavailable")
    listing = ask(api, "GET", "/fleet/engines")[1]
    assert (listing["trouble"], len(listing["data"])) == ("etcd does not answer", 1)


PATHS = st.sampled_from(["", "/", "/e1", "/e1/drain", "/e1/heartbeat", "/%ff", "/e1/x/y"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    method=st.sampled_from(["GET", "POST", "PUT", "DELETE", "FOO"]),
    path=PATHS | st.text(max_size=20),
    body=st.binary(max_size=200) | st.dictionaries(st.text(max_size=8), st.text(max_size=8) | st.integers()),
)
def test_whatever_comes_in_the_answer_is_json_and_never_a_500(
    api: FleetApi, method: str, path: str, body: bytes | dict[str, Any]
) -> None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    status, answer = api.handle(method, f"/fleet/engines{path}", "", {}, raw, True)
    assert 200 <= status < 500
    json.loads(answer)


def test_without_permission_nothing_is_read_or_done(api: FleetApi, registry: EmbeddedRegistry) -> None:
    body = json.dumps(ONE).encode()
    for method, path in (("POST", ""), ("GET", ""), ("DELETE", "/e1")):
        status, answer = api.handle(method, f"/fleet/engines{path}", "", {}, body, False)
        assert status == 401
        assert "Authorization: Bearer TOKEN" in json.loads(answer)["error"]["message"]
    assert registry.members() == ()


TOKEN = Admission("s3cret-token", loopback=True)
OPEN = Admission("", loopback=True)


@pytest.mark.parametrize(
    ("admission", "headers", "permitted"),
    [
        (TOKEN, {"authorization": "Bearer s3cret-token"}, True),
        (TOKEN, {"authorization": "bearer  s3cret-token"}, True),
        (TOKEN, {"authorization": "Bearer s3cret-toke"}, False),
        (TOKEN, {"authorization": "Basic s3cret-token"}, False),
        (TOKEN, {"authorization": "s3cret-token"}, False),
        (TOKEN, {"authorization": "Bearer \udcff\u00fc"}, False),
        (TOKEN, {"authorization": "Bearer "}, False),
        (TOKEN, {}, False),
        (Admission("s3cret-token", loopback=False), {"authorization": "Bearer s3cret-token"}, True),
        (Admission("", loopback=False), {}, False),
        (Admission("", loopback=False), {"authorization": "Bearer "}, False),
        (OPEN, {}, True),
        (OPEN, {"host": "127.0.0.1:8080"}, True),
        (OPEN, {"host": "localhost:8080", "origin": "http://localhost:8080", "sec-fetch-site": "same-origin"}, True),
        (OPEN, {"host": "[::1]:8080"}, True),
        # A page elsewhere, shown by a browser on this machine; one whose name was pointed at this machine.
        (OPEN, {"host": "127.0.0.1:8080", "origin": "https://evil.example"}, False),
        (OPEN, {"host": "127.0.0.1:8080", "origin": "null"}, False),
        (OPEN, {"host": "127.0.0.1:8080", "sec-fetch-site": "cross-site"}, False),
        (OPEN, {"host": "evil.example:8080", "origin": "http://evil.example:8080"}, False),
        # A proxy on this machine passes on what comes from elsewhere.
        (OPEN, {"host": "127.0.0.1:8080", "x-forwarded-for": "10.0.0.9"}, False),
        (OPEN, {"host": "[::1", "origin": "http://[zz"}, False),
    ],
)
def test_only_who_shows_the_token_or_comes_directly_over_loopback_is_let_in(
    admission: Admission, headers: dict[str, str], permitted: bool
) -> None:
    assert admission.permits(headers) is permitted


def test_the_token_is_in_no_text_of_the_admission() -> None:
    assert "s3cret" not in repr(TOKEN)


@pytest.mark.parametrize(
    ("host", "loopback"),
    [
        ("127.0.0.1", True),
        ("127.3.2.1", True),
        ("::1", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
    ],
)
def test_an_address_is_loopback_only_if_no_other_machine_reaches_it(host: str, loopback: bool) -> None:
    assert is_loopback(host) is loopback


def test_the_token_comes_from_a_file_or_else_from_the_environment(tmp_path: Path) -> None:
    file = tmp_path / "token"
    file.write_text("from-file\n", encoding="utf8")
    assert read_token(str(file), {"KVEIK_ADMISSION_TOKEN": "from-env"}) == "from-file"
    assert read_token("", {"KVEIK_ADMISSION_TOKEN": "from-env"}) == "from-env"
    assert read_token("", {}) == ""


@pytest.mark.parametrize("content", [b"", b" \n", b"two words", b"\xff\xfe", "müll".encode()])
def test_a_token_file_without_a_usable_token_is_refused_and_not_shown(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "token"
    file.write_bytes(content)
    with pytest.raises(ConfigError, match="admission token in") as caught:
        read_token(str(file), {})
    assert "words" not in str(caught.value)


def test_the_door_stands_before_the_api(api: FleetApi) -> None:
    admin = FleetAdmin(api, TOKEN)
    body = json.dumps(ONE).encode()
    good = {"authorization": "Bearer s3cret-token"}
    assert admin.handle("POST", "/fleet/engines", {}, body)[0] == 401
    assert admin.handle("POST", "/fleet/engines", good, body)[0] == 201
    assert (admin.may_read({}), admin.may_read(good)) == (False, True)


def test_the_documentation_names_every_request_of_the_api() -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "fleet.md").read_text(encoding="utf8")
    requests = re.findall(r"^    ([A-Z]+ +/fleet\S+)", str(fleet_api.__doc__), re.MULTILINE)
    assert len(requests) == 8
    assert [request for request in requests if " ".join(request.split()) not in page] == []
