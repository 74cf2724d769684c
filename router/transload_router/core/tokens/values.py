"""Reading JSON values by the engine's rules: wrong types end the reading."""

import json
from typing import Any

import msgspec

from transload_router.core.bodies.members import Members, Raw
from transload_router.core.tokens.job import Cut, Reason, Unreadable

_ANY = msgspec.json.Decoder()


def decode(raw: Raw) -> Any:
    """A JSON value as Python's `json` gives it.

    Raises:
        Unreadable: It is no JSON.
    """
    try:
        return _ANY.decode(raw)
    except msgspec.DecodeError:
        pass
    except RecursionError:
        raise Unreadable(Reason.INVALID) from None
    try:
        return json.loads(bytes(raw))
    except (ValueError, RecursionError):
        raise Unreadable(Reason.INVALID) from None


def value_of(members: Members, name: str) -> Any:
    """A member's value; None where it is absent."""
    raw = members.get(name)
    return None if raw is None else decode(raw)


def flag_of(members: Members, name: str, default: bool) -> bool:
    """A boolean member.

    Raises:
        Unreadable: The member is neither true nor false.
    """
    raw = members.get(name)
    if raw is None:
        return default
    value = decode(raw)
    if value is True or value is False:
        return value
    raise Unreadable(Reason.INVALID)


def text_of(members: Members, name: str) -> str | None:
    """A member that is a string or null.

    Raises:
        Unreadable: It is something else.
    """
    value = value_of(members, name)
    if value is None or isinstance(value, str):
        return value
    raise Unreadable(Reason.INVALID)


def object_of(members: Members, name: str) -> dict[str, Any] | None:
    """A member that is an object or null.

    Raises:
        Unreadable: It is something else.
    """
    value = value_of(members, name)
    if value is None or isinstance(value, dict):
        return value
    raise Unreadable(Reason.INVALID)


def salt_of(members: Members) -> str | None:
    """The client's cache salt.

    Raises:
        Unreadable: The engine would refuse it.
    """
    salt = text_of(members, "cache_salt")
    if salt is None:
        return None
    # Half a character has no bytes, and so no place in a block's name.
    if not 1 <= len(salt) <= 1024 or any("\ud800" <= char <= "\udfff" for char in salt):
        raise Unreadable(Reason.INVALID)
    return salt


def cut_of(members: Members) -> Cut | None:
    """`truncate_prompt_tokens` and `truncation_side`.

    Raises:
        Unreadable: The rest depends on the engine's context length, or the engine would refuse
            the request.
    """
    num_tokens = value_of(members, "truncate_prompt_tokens")
    side = value_of(members, "truncation_side")
    if side not in (None, "left", "right"):
        raise Unreadable(Reason.INVALID)
    if num_tokens is None:
        return None
    if type(num_tokens) is not int or num_tokens < -1:
        raise Unreadable(Reason.INVALID)
    if num_tokens < 1:
        raise Unreadable(Reason.TRUNCATION)
    return Cut(num_tokens, side)
