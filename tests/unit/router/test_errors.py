"""Who is wrong, with which status, and whether it may be sent again."""

import re

import pytest

from transload_router import errors
from transload_router.errors import (
    BadRequest,
    BodyTooLarge,
    ClientError,
    ConfigError,
    EncodedBody,
    EngineBadAnswer,
    EngineError,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
    Forbidden,
    MissingHandoff,
    NoEngine,
    TransloadError,
)


def subclasses(cls: type[TransloadError]) -> set[type[TransloadError]]:
    return {cls}.union(*(subclasses(child) for child in cls.__subclasses__()))


def ours() -> set[type[TransloadError]]:
    return {cls for cls in subclasses(TransloadError) if cls.__module__ == errors.__name__}


def test_tree_in_the_docstring_is_the_tree() -> None:
    assert errors.__doc__
    drawn = dict(re.findall(r"[├└]── (\w+) +(\d{3})?", errors.__doc__))
    assert set(drawn) == {cls.__name__ for cls in ours()} - {"TransloadError"}
    for name, status in drawn.items():
        if status:
            assert getattr(errors, name).status == int(status), name


@pytest.mark.parametrize(
    ("cls", "status", "kind", "retry_after_s"),
    [
        (TransloadError, 500, "internal_error", None),
        (ConfigError, 500, "config_error", None),
        (BadRequest, 400, "invalid_request_error", None),
        (Forbidden, 403, "forbidden", None),
        (BodyTooLarge, 413, "request_too_large", None),
        (EncodedBody, 415, "unsupported_content_encoding", None),
        (NoEngine, 503, "no_engine_available", 1),
        (MissingHandoff, 502, "missing_handoff", None),
        (EngineError, 502, "engine_error", None),
        (EngineUnreachable, 503, "engine_unreachable", 1),
        (EngineTimeout, 504, "engine_timeout", None),
        (EngineReset, 502, "engine_reset", None),
        (EngineBadAnswer, 502, "engine_bad_answer", None),
    ],
)
def test_what_the_client_is_told(
    cls: type[TransloadError], status: int, kind: str, retry_after_s: int | None
) -> None:
    assert (cls.status, cls.kind, cls.retry_after_s) == (status, kind, retry_after_s)


def test_kinds_are_distinct_and_fit_for_labels() -> None:
    leaves = [cls for cls in ours() if not cls.__subclasses__()]
    kinds = [cls.kind for cls in leaves]
    assert len(set(kinds)) == len(kinds)
    assert all(re.fullmatch(r"[a-z_]+", kind) for kind in kinds)


def test_clients_are_never_told_to_come_back() -> None:
    for cls in ours():
        if issubclass(cls, ClientError):
            assert 400 <= cls.status < 500
            assert cls.retry_after_s is None
        elif cls is not TransloadError:
            assert cls.status >= 500


def test_engine_errors_name_the_engine() -> None:
    error = EngineTimeout("prefill-0", "no header within 5 s")
    assert str(error) == "engine prefill-0: no header within 5 s"
    assert error.engine == "prefill-0"
    assert error.was_sent is True
    assert EngineReset("d", "x", was_sent=False).was_sent is False


def test_unreachable_was_never_sent() -> None:
    error = EngineUnreachable("decode-1", "refused")
    assert error.was_sent is False
    assert str(error) == "engine decode-1: refused"
