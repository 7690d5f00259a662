import json
from pathlib import Path
from typing import Any

import pytest

from kveik.config import RouterSettings
from kveik.errors import ConfigError
from kveik.router.api_keys import ApiKeys
from kveik.router.gate import REFUSALS, Gate, Refused, Ticket
from kveik.router.keys_file import ApiKey, editing, with_key_added, with_key_revoked, write_keys


class Keyring:
    """A keys file, and a gate over it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.edit()

    def edit(self, revoke: str = "", **fields: Any) -> bytes:
        secret = ""
        with editing(self.path) as before:
            keys = with_key_revoked(before, revoke) if revoke else before
            if fields:
                keys, secret = with_key_added(keys, ApiKey(**fields))
            write_keys(self.path, keys)
        return b"Bearer " + secret.encode()

    def gate(self, **settings: Any) -> Gate:
        return Gate(RouterSettings(**settings), ApiKeys(self.path), 0.0)


@pytest.fixture
def ring(tmp_path: Path) -> Keyring:
    return Keyring(tmp_path / "keys.json")


def admitted(answer: Ticket | Refused) -> Ticket:
    assert isinstance(answer, Ticket), answer
    return answer


def refused(answer: object) -> Refused:
    assert isinstance(answer, Refused), answer
    return answer


def error_of(refusal: Refused) -> dict[str, Any]:
    error: dict[str, Any] = json.loads(refusal.body)["error"]
    return error


def test_without_a_keys_file_everybody_is_let_in() -> None:
    gate = Gate(RouterSettings(), None, 0.0)
    ticket = admitted(gate.enter(None, 0.0))
    assert (ticket.key_name, ticket.waits) == ("anyone", False)
    assert gate.allow(ticket, "any-model", 10, 0.0) is None
    gate.leave(ticket, 1.0, 10)
    assert gate.places.inside == 0


@pytest.mark.parametrize(("credentials", "reason"), [(None, "no_key"), (b"Bearer sk-guess", "wrong_key")])
def test_a_request_without_a_valid_key_is_refused_in_openai_s_shape(
    ring: Keyring, credentials: bytes | None, reason: str
) -> None:
    gate = ring.gate()
    refusal = refused(gate.enter(credentials, 0.0))
    assert (refusal.reason, refusal.status) == (reason, 401)
    assert (b"www-authenticate", b"Bearer") in refusal.headers
    error = error_of(refusal)
    assert set(error) == {"message", "type", "param", "code"}
    assert error["type"] == "authentication_error"
    assert b"sk-guess" not in refusal.body
    assert gate.refusals == {reason: 1}
    assert gate.places.inside == 0


def test_a_key_may_use_only_its_models(ring: Keyring) -> None:
    credentials = ring.edit(name="team", models=("qwen-*", "llama"))
    gate = ring.gate()
    ticket = admitted(gate.enter(credentials, 0.0))
    assert gate.allow(ticket, "qwen-7b", 5, 0.0) is None
    assert gate.allow(ticket, "llama", 5, 0.0) is None
    for model in ("llama-2", "Qwen-7b", "", "x\nqwen-7b"):
        assert refused(gate.allow(ticket, model, 5, 0.0)).status == 403
    assert ticket.state.may_use("qwen-\n")


def test_requests_beyond_the_rate_get_429_and_are_told_when_to_come_back(ring: Keyring) -> None:
    credentials = ring.edit(name="team", requests_per_min=2)
    gate = ring.gate()
    for _ in range(2):
        gate.leave(admitted(gate.enter(credentials, 0.0)), 0.0)
    refusal = refused(gate.enter(credentials, 0.0))
    assert (refusal.status, error_of(refusal)["type"]) == (429, "rate_limit_error")
    assert "2 requests a minute" in error_of(refusal)["message"]
    assert dict(refusal.headers)[b"retry-after"] == b"30"
    assert isinstance(gate.enter(credentials, 30.0), Ticket)


def test_tokens_are_booked_before_and_settled_after(ring: Keyring) -> None:
    credentials = ring.edit(name="team", tokens_per_min=600)
    gate = ring.gate()
    first = admitted(gate.enter(credentials, 0.0))
    assert gate.allow(first, "m", 600, 0.0) is None
    refusal = refused(gate.enter(credentials, 0.0))
    assert refusal.reason == "token_rate"
    assert dict(refusal.headers)[b"retry-after"] == b"1"
    gate.leave(first, 0.0, used_tokens=200)
    second = admitted(gate.enter(credentials, 0.0))
    gate.allow(second, "m", 10, 0.0)
    gate.leave(second, 0.0, used_tokens=1000)
    gate.leave(second, 0.0, used_tokens=1000)
    assert dict(refused(gate.enter(credentials, 0.0)).headers)[b"retry-after"] == b"61", "600 beyond, at 10 a second"


def test_tokens_of_a_request_that_failed_are_given_back(ring: Keyring) -> None:
    credentials = ring.edit(name="team", tokens_per_min=600)
    gate = ring.gate()
    ticket = admitted(gate.enter(credentials, 0.0))
    gate.allow(ticket, "m", 600, 0.0)
    gate.leave(ticket, 0.0)
    assert isinstance(gate.enter(credentials, 0.0), Ticket)


def test_what_was_booked_stands_if_the_engine_does_not_say_what_was_used(ring: Keyring) -> None:
    credentials = ring.edit(name="team", tokens_per_min=600)
    gate = ring.gate()
    ticket = admitted(gate.enter(credentials, 0.0))
    gate.allow(ticket, "m", 600, 0.0)
    gate.leave(ticket, 0.0, used_tokens=None)
    assert refused(gate.enter(credentials, 0.0)).reason == "token_rate"


def waiting_answers(ticket: Ticket) -> list[Refused | None]:
    answers: list[Refused | None] = []
    ticket.on_turn = answers.append
    return answers


def test_a_waiting_request_is_called_when_a_place_is_free(ring: Keyring) -> None:
    gate = Gate(RouterSettings(concurrent_max=1), None, 0.0)
    running, waiting = admitted(gate.enter(None, 0.0)), admitted(gate.enter(None, 0.0))
    assert waiting.waits
    answers = waiting_answers(waiting)
    gate.leave(running, 1.0)
    assert answers == [None]
    assert not waiting.waits


def test_thousands_that_leave_at_their_turn_do_not_pile_up_on_the_stack() -> None:
    gate = Gate(RouterSettings(concurrent_max=1, queue_max=5000), None, 0.0)
    running = admitted(gate.enter(None, 0.0))
    order: list[int] = []

    def leave_at_once(ticket: Ticket, number: int) -> None:
        order.append(number)
        gate.leave(ticket, 1.0)

    for number in range(5000):
        waiting = admitted(gate.enter(None, 0.0))
        waiting.on_turn = lambda _, ticket=waiting, number=number: leave_at_once(ticket, number)  # type: ignore[misc]
    gate.leave(running, 1.0)
    assert order == list(range(5000))
    assert (gate.places.inside, gate.places.waiting) == (0, 0)


def test_a_waiting_request_is_turned_away_after_the_time_out() -> None:
    gate = Gate(RouterSettings(concurrent_max=1, queue_timeout_s=5.0), None, 0.0)
    running, waiting = admitted(gate.enter(None, 0.0)), admitted(gate.enter(None, 1.0))
    answers = waiting_answers(waiting)
    gate.tick(5.9)
    assert answers == []
    gate.tick(6.0)
    (refusal,) = answers
    assert refusal is not None
    assert (refusal.reason, refusal.status) == ("queue_timeout", 503)
    assert dict(refusal.headers)[b"retry-after"] == b"1"
    gate.leave(waiting, 6.0)
    gate.leave(running, 6.0)
    assert (gate.places.inside, gate.places.waiting) == (0, 0)


def test_a_client_that_leaves_the_queue_is_not_called(ring: Keyring) -> None:
    gate = Gate(RouterSettings(concurrent_max=1), None, 0.0)
    running, gone = admitted(gate.enter(None, 0.0)), admitted(gate.enter(None, 0.0))
    answers = waiting_answers(gone)
    gate.leave(gone, 0.0)
    gate.leave(running, 0.0)
    assert answers == []
    assert gate.places.inside == 0


def test_a_full_queue_is_503_and_a_flooding_key_crowds_out_itself(ring: Keyring) -> None:
    flood, quiet = ring.edit(name="flood"), ring.edit(name="quiet")
    gate = ring.gate(concurrent_max=1, queue_max=2)
    tickets = [admitted(gate.enter(flood, 0.0)) for _ in range(3)]
    assert refused(gate.enter(flood, 0.0)).reason == "queue_full"
    answers = waiting_answers(tickets[-1])
    assert admitted(gate.enter(quiet, 0.0)).waits
    (refusal,) = answers
    assert refusal is not None
    assert (refusal.reason, refusal.status) == ("crowded_out", 503)


def test_limits_of_one_key_hold_and_those_that_set_none_get_the_default(ring: Keyring) -> None:
    one, default = ring.edit(name="one", concurrent=1), ring.edit(name="default")
    gate = ring.gate(key_concurrent_max=2)
    assert [admitted(gate.enter(one, 0.0)).waits for _ in range(2)] == [False, True]
    assert [admitted(gate.enter(default, 0.0)).waits for _ in range(3)] == [False, False, True]


def test_a_changed_keys_file_changes_limits_but_forgets_nothing(ring: Keyring) -> None:
    credentials = ring.edit(name="team", concurrent=1, requests_per_min=4)
    gate = ring.gate()
    running, waiting = admitted(gate.enter(credentials, 0.0)), admitted(gate.enter(credentials, 0.0))
    answers = waiting_answers(waiting)
    content = json.loads(ring.path.read_text())
    content["keys"][0] |= {"concurrent": 2, "requests_per_min": 2}
    ring.path.write_text(json.dumps(content))
    gate.tick(0.0)
    assert answers == [None]
    assert gate.places.inside == 2
    gate.leave(admitted(gate.enter(credentials, 0.0)), 0.0)
    assert refused(gate.enter(credentials, 0.0)).reason == "request_rate"
    gate.leave(running, 0.0)


def test_a_revoked_key_is_refused_while_its_running_requests_end_in_peace(ring: Keyring) -> None:
    credentials = ring.edit(name="team")
    gate = ring.gate()
    running = admitted(gate.enter(credentials, 0.0))
    ring.edit(revoke="team")
    gate.tick(1.0)
    assert refused(gate.enter(credentials, 1.0)).status == 401
    gate.leave(running, 1.0)
    assert gate.places.inside == 0


def test_tenants_get_salts_of_their_own_and_keys_of_one_tenant_the_same(ring: Keyring) -> None:
    names = {"a": "lab", "b": "lab", "c": "", "lab": ""}
    credentials = {name: ring.edit(name=name, tenant=tenant) for name, tenant in names.items()}
    gate = ring.gate(tenant_isolation=True)
    body = json.dumps({"model": "m", "cache_salt": "chosen"}).encode()
    salts = {}
    for name, presented in credentials.items():
        ticket = admitted(gate.enter(presented, 0.0))
        changed = gate.body_for_engine(ticket, body)
        assert isinstance(changed, bytes)
        salts[name] = json.loads(changed)["cache_salt"]
    assert salts["a"] == salts["b"]
    assert len({salts["a"], salts["c"], salts["lab"]}) == 3, "a key's name is not the tenant of that name"
    assert "chosen" not in salts.values()


def test_without_isolation_bodies_are_the_same_bytes(ring: Keyring) -> None:
    credentials = ring.edit(name="a")
    gate = ring.gate()
    ticket = admitted(gate.enter(credentials, 0.0))
    body = b'{"cache_salt": "mine"'
    assert gate.body_for_engine(ticket, body) is body


def test_with_isolation_a_body_that_cannot_be_read_is_refused_but_forms_pass(ring: Keyring) -> None:
    credentials = ring.edit(name="a")
    gate = ring.gate(tenant_isolation=True)
    ticket = admitted(gate.enter(credentials, 0.0))
    for body in (b"[1]", b"{", b"model=m&cache_salt=x", b'{"cache_salt":"x"'):
        refusal = refused(gate.body_for_engine(ticket, body))
        assert (refusal.status, refusal.reason) == (400, "bad_body")
    for body in (b"--x\r\n", b"\r\n--x\r\n", b""):
        assert gate.body_for_engine(ticket, body) is body


def test_isolation_without_keys_is_refused_at_start() -> None:
    with pytest.raises(ConfigError, match="tenant_isolation needs"):
        Gate(RouterSettings(tenant_isolation=True), None, 0.0)


def test_identifying_takes_no_place(ring: Keyring) -> None:
    credentials = ring.edit(name="team")
    gate = ring.gate(concurrent_max=1)
    for _ in range(3):
        state = gate.identify(credentials, 0.0)
        assert not isinstance(state, Refused)
        assert state.key.name == "team"
    assert gate.places.inside == 0
    assert "refusals={}" in repr(gate)


def test_every_reason_has_a_sentence_and_says_when_to_come_back_if_that_helps() -> None:
    for row in REFUSALS.values():
        assert row.message.endswith((".", "{detail}."))
        assert bool(row.retry_after_s) == (row.status in (429, 503))
