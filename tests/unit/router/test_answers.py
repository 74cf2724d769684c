"""Errors in each API's words, to the byte."""

import json

import pytest

from transload_router.app.answers import error_body, error_event, error_headers
from transload_router.core.types import Dialect
from transload_router.errors import (
    BadRequest,
    BodyTooLarge,
    EngineReset,
    EngineTimeout,
    EngineUnreachable,
    Forbidden,
    NoEngine,
    TransloadError,
)

RESET = EngineReset("decode-0", 'the "stream" 断了')
OPENAI = (
    '{"error":{"message":"engine decode-0: the \\"stream\\" 断了","type":"engine_reset",'
    '"param":null,"code":502}}'
).encode()
ANTHROPIC = (
    '{"type":"error","error":{"type":"api_error",'
    '"message":"engine decode-0: the \\"stream\\" 断了"}}'
).encode()


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Dialect.OPENAI, OPENAI),
        (Dialect.RESPONSES, OPENAI),
        (Dialect.ANTHROPIC, ANTHROPIC),
    ],
)
def test_bodies(dialect: Dialect, body: bytes) -> None:
    assert error_body(RESET, dialect) == body


@pytest.mark.parametrize(
    ("error", "word"),
    [
        (BadRequest("x"), "invalid_request_error"),
        (Forbidden("x"), "permission_error"),
        (BodyTooLarge("x"), "request_too_large"),
        (NoEngine("x"), "overloaded_error"),
        (EngineUnreachable("d", "x"), "overloaded_error"),
        (EngineTimeout("d", "x"), "timeout_error"),
        (EngineReset("d", "x"), "api_error"),
        (TransloadError("x"), "api_error"),
    ],
)
def test_anthropics_words(error: TransloadError, word: str) -> None:
    assert json.loads(error_body(error, Dialect.ANTHROPIC))["error"]["type"] == word


def test_headers() -> None:
    kind = (b"content-type", b"application/json")
    assert error_headers(BadRequest("x")) == [kind]
    assert error_headers(NoEngine("x")) == [kind, (b"retry-after", b"1")]
    assert error_headers(RESET, was_retried=True) == [kind, (b"x-should-retry", b"false")]


@pytest.mark.parametrize(
    ("dialect", "event"),
    [
        (Dialect.OPENAI, b"data: " + OPENAI + b"\n\n"),
        (Dialect.ANTHROPIC, b"event: error\ndata: " + ANTHROPIC + b"\n\n"),
        (
            Dialect.RESPONSES,
            (
                'event: error\ndata: {"type":"error","code":"engine_reset","message":'
                '"engine decode-0: the \\"stream\\" 断了","param":null,"sequence_number":8}\n\n'
            ).encode(),
        ),
    ],
)
def test_events(dialect: Dialect, event: bytes) -> None:
    assert error_event(RESET, dialect, 7) == event


def test_the_first_event_of_a_response_has_number_zero() -> None:
    event = error_event(RESET, Dialect.RESPONSES, -1)
    assert json.loads(event.partition(b"data: ")[2])["sequence_number"] == 0


def test_an_event_is_one_line_of_data_whatever_the_message() -> None:
    error = BadRequest("one\ntwo\r\n\r\ndata: [DONE]")
    for dialect in Dialect:
        lines = error_event(error, dialect, 0).splitlines()
        assert sum(line.startswith(b"data: ") for line in lines) == 1
        assert b"[DONE]" not in [line.removeprefix(b"data: ") for line in lines]
