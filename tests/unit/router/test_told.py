"""What engines' whole answers tell: of a handoff, of counts, of ids; and what is not one."""

import logging

import pytest

from transload_router.app.told import Prefilled, Usage, read_prefilled, read_usage
from transload_router.core.bodies.endpoints import CHAT, COMPLETIONS
from transload_router.errors import EngineBadAnswer

USAGE = b'"usage":{"prompt_tokens":40,"prompt_tokens_details":{"cached_tokens":32}}'


def test_a_handoff_that_carries_its_count() -> None:
    body = b'{"kv_transfer_params":{"a":1, "remote_prefill_cached_tokens":16},%b}' % USAGE
    handoff = b'{"a":1, "remote_prefill_cached_tokens":16}'
    assert read_prefilled(CHAT, body, "p") == Prefilled(handoff, 16, None, 40, None)


def test_a_handoff_that_does_not() -> None:
    body = b'{"kv_transfer_params":{"a":1},%b}' % USAGE
    assert read_prefilled(CHAT, body, "p") == Prefilled(b'{"a":1}', 32, 32, 40, None)
    body = b'{"kv_transfer_params":{"a":1},"usage":{"prompt_tokens":40}}'
    assert read_prefilled(CHAT, body, "p") == Prefilled(b'{"a":1}', None, 0, 40, None)
    assert read_prefilled(CHAT, b"{}", "p") == Prefilled(None, None, None, None, None)


def test_ids_lie_where_the_endpoint_has_them() -> None:
    chat, completion = b'{"prompt_token_ids":[1,2]}', b'{"choices":[{"prompt_token_ids":[3]}]}'
    assert read_prefilled(CHAT, chat, "p").token_ids == b"[1,2]"
    assert read_prefilled(COMPLETIONS, completion, "p").token_ids == b"[3]"
    assert read_prefilled(CHAT, completion, "p").token_ids is None
    assert read_prefilled(CHAT, b'{"prompt_token_ids":null}', "p").token_ids is None


@pytest.mark.parametrize("params", [b"[]", b"7", b'"x"', b"{}"])
def test_what_is_no_handoff_is_said(params: bytes, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    assert read_prefilled(CHAT, b'{"kv_transfer_params":%b}' % params, "p").handoff is None
    assert len(caplog.messages) == 1


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b"\xff"])
def test_what_is_no_answer_is_the_engines_fault(body: bytes) -> None:
    with pytest.raises(EngineBadAnswer, match="prefill's answer"):
        read_prefilled(CHAT, body, "p")


@pytest.mark.parametrize(
    ("body", "usage"),
    [
        (b"{}", Usage()),
        (b'"usage"', Usage()),
        (b'{"usage":null}', Usage()),
        (b'{"usage":7}', Usage()),
        (b"{%b}" % USAGE, Usage(32, 40, None)),
        (b'{"usage":{"input_tokens":9,"output_tokens":3}}', Usage(None, 9, 3)),
        (
            b'{"usage":{"input_tokens":9,"input_tokens_details":{"cached_tokens":4}}}',
            Usage(4, 9, None),
        ),
        (
            b'{"usage":{"input_tokens":9,"cache_read_input_tokens":16,'
            b'"cache_creation_input_tokens":2,"output_tokens":1}}',
            Usage(16, 27, 1),
        ),
    ],
)
def test_usage(body: bytes, usage: Usage) -> None:
    assert read_usage(body) == usage
