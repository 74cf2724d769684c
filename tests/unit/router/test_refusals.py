"""Which refusals leave a handoff alone, as measured on the real engine."""

import json

import pytest

from transload_router.core.bodies.endpoints import (
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    Endpoint,
)
from transload_router.core.bodies.members import read_members
from transload_router.core.refusals import left_handoff_alone


def answer(kind: str, param: str | None = None) -> bytes:
    error = {"message": "no", "type": kind, "param": param, "code": 400}
    return json.dumps({"error": error}).encode()


def refused(endpoint: Endpoint, body: bytes, sent: bytes = b"{}", status: int = 400) -> bool:
    return left_handoff_alone(endpoint, read_members(sent), status, body)


@pytest.mark.parametrize("endpoint", ENDPOINTS.values(), ids=lambda row: row.name)
def test_a_body_that_fails_validation_is_never_looked_at(endpoint: Endpoint) -> None:
    assert refused(endpoint, answer("Bad Request", "max_tokens"))


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, RESPONSES, MESSAGES])
@pytest.mark.parametrize("param", [None, "max_tokens", "temperature", "logprobs", "model"])
def test_a_request_refused_for_its_content_was_released(
    endpoint: Endpoint, param: str | None
) -> None:
    assert not refused(endpoint, answer("BadRequestError", param))


@pytest.mark.parametrize("status", [400, 404, 422, 429])
def test_generate_never_releases(status: int) -> None:
    assert refused(GENERATE, answer("BadRequestError"), status=status)


@pytest.mark.parametrize("param", ["stream_options", "tool_choice"])
def test_members_checked_against_each_other_are_validation(param: str) -> None:
    assert refused(CHAT, answer("BadRequestError", param))


def test_top_logprobs_depends_on_what_was_sent() -> None:
    body = answer("BadRequestError", "top_logprobs")
    assert refused(CHAT, body, b'{"top_logprobs":3}')
    assert not refused(CHAT, body, b'{"top_logprobs":999,"logprobs":true}')


def test_an_unknown_model_was_released() -> None:
    assert not refused(CHAT, answer("NotFoundError", "model"), status=404)


@pytest.mark.parametrize("status", [200, 302, 500, 503])
def test_only_client_errors_can_leave_a_handoff_alone(status: int) -> None:
    assert not refused(GENERATE, answer("Bad Request"), status=status)


@pytest.mark.parametrize("body", [b"", b"no", b"[]", b'{"error":3}', b'{"error":null}', b"{}"])
def test_an_answer_in_no_known_form_claims_nothing(body: bytes) -> None:
    assert not refused(CHAT, body)


def test_anthropic_errors_are_read_alike() -> None:
    body = b'{"type":"error","error":{"type":"BadRequestError","message":"no"}}'
    assert not refused(MESSAGES, body)
