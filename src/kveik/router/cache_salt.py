"""vLLM's ``cache_salt`` in a request's body: which requests may share cached blocks.

Only the members of the outermost object are looked at; what is nested in them is text of the
client and stays as it is, byte for byte. A member that stands there twice, or whose name is
written with escapes, is found as an engine's JSON parser finds it: by its decoded name, the last
one counts. Afterwards the body has exactly one.
"""

import hashlib
import json
from typing import Any

import msgspec

MEMBER = "cache_salt"
_members = msgspec.json.Decoder(dict[str, msgspec.Raw])
_encoder = msgspec.json.Encoder()


def with_cache_salt(body: bytes, salt: str) -> bytes:
    """``body`` with this salt instead of whatever it had.

    Raises :class:`ValueError` where the body is no JSON object.
    """
    return _with_member(_members_of(body), salt)


def with_tenant_salt(body: bytes, tenant_salt: str) -> bytes:
    """``body`` with a salt that is its tenant's own, whatever it asked for.

    A salt that the client gave keeps its meaning within the tenant: it is hashed together with the
    tenant's, so that two of its users stay apart, and no choice of it reaches another tenant.
    Raises :class:`ValueError` where the body is no JSON object.
    """
    members = _members_of(body)
    given = members.get(MEMBER)
    return _with_member(members, tenant_salt if given is None else combined(tenant_salt, _text(given)))


def combined(tenant_salt: str, client_salt: str) -> str:
    """One salt of both; the tenant's own where the client gave none."""
    if not client_salt:
        return tenant_salt
    joined = client_salt.encode("utf8", "surrogatepass")
    return hashlib.blake2b(joined, key=tenant_salt.encode(), digest_size=16).hexdigest()


def _members_of(body: bytes) -> dict[str, Any]:
    """Names and values (still as they were written, where possible) of the outermost object."""
    try:
        return _members.decode(body)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    except msgspec.DecodeError:
        return _leniently(body)


def _leniently(body: bytes) -> dict[str, Any]:
    """The same for what engines accept beyond strict JSON: halves of surrogate pairs, NaN, UTF-16, a BOM."""
    try:
        members = json.loads(body)
    except RecursionError:
        raise ValueError("the body is nested too deeply") from None
    except ValueError as error:  # JSONDecodeError and UnicodeDecodeError are ValueErrors
        raise ValueError(f"the body is not valid JSON: {error}") from None
    if not isinstance(members, dict):
        raise ValueError("the body is no JSON object")
    return {name: msgspec.Raw(json.dumps(value).encode()) for name, value in members.items()}


def _with_member(members: dict[str, Any], salt: str) -> bytes:
    members[MEMBER] = salt
    try:
        return _encoder.encode(members)
    except UnicodeEncodeError:  # half a surrogate pair in a name: only escapes can carry it
        pairs = (f"{json.dumps(name)}:{_raw_text(value)}" for name, value in members.items())
        return f"{{{','.join(pairs)}}}".encode()


def _raw_text(value: Any) -> str:
    return bytes(value).decode() if isinstance(value, msgspec.Raw) else json.dumps(value)


def _text(given: Any) -> str:
    """What the client gave, if it is text: anything else an engine would refuse, and here it counts for nothing."""
    try:
        value = json.loads(bytes(given))
    except ValueError:
        return ""
    return value if isinstance(value, str) else ""
