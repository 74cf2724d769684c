"""Cached-token counts: replaced where they stand, and nothing else touched."""

import json
from typing import Any

import pytest

from transload_router.core.bodies.members import read_members
from transload_router.core.usage import (
    carried_tokens,
    detailed_tokens,
    patch_answer,
    patch_event,
    read_cached_tokens,
    streamed_tokens,
    written_tokens,
)

# Answers as engines write them, with %d for the figures that may change.
CHAT = (
    b'{"id":"c","choices":[{"message":{"content":"\\u00e9 \\"cached_tokens\\":7"},"x":1e999}],'
    b'"usage":{"prompt_tokens":100,"total_tokens":110,"completion_tokens":10,'
    b'"prompt_tokens_details":{"cached_tokens":%d,"multimodal_tokens":null}},"x":1.0}'
)
RESPONSE = (
    b'{"id":"r","metadata":{"cached_tokens":"100","usage":"cached_tokens"},'
    b'"usage":{"input_tokens":100,"input_tokens_details":{"cached_tokens":%d},"output_tokens":5,'
    b'"total_tokens":105}}'
)
COMPLETED = b'{"type":"response.completed","sequence_number":7,"response":' + RESPONSE + b"}"
MESSAGE = (
    b'{"id":"m","type":"message","content":[{"type":"text","text":"cache_read_input_tokens"}],'
    b'"usage":{"input_tokens":%d,"output_tokens":5,"cache_read_input_tokens":%d}}'
)
MESSAGE_START = b'{"type":"message_start","message":' + MESSAGE + b"}"
MESSAGE_DELTA = (
    b'{"type":"message_delta","delta":{"stop_reason":"end_turn"},'
    b'"usage":{"input_tokens":%d,"output_tokens":5,"cache_read_input_tokens":%d}}'
)
CHUNK = (
    b'{"object":"chat.completion.chunk","choices":[],"usage":{"prompt_tokens":100,'
    b'"total_tokens":110,"prompt_tokens_details":{"cached_tokens":%d}}}'
)


@pytest.mark.parametrize("shape", [CHAT, RESPONSE, COMPLETED, CHUNK])
@pytest.mark.parametrize(("found", "said"), [(0, 0), (48, 48), (100, 100), (101, 100), (-1, 0)])
def test_details(shape: bytes, found: int, said: int) -> None:
    assert patch_answer(shape % 99, found) == shape % said


@pytest.mark.parametrize("shape", [MESSAGE, MESSAGE_START, MESSAGE_DELTA])
@pytest.mark.parametrize(("found", "said"), [(0, 0), (48, 48), (100, 100), (101, 100), (-1, 0)])
def test_cache_read(shape: bytes, found: int, said: int) -> None:
    """The sum of both figures is the prompt, and stays."""
    assert patch_answer(shape % (1, 99), found) == shape % (100 - said, said)


def test_cache_creation_stays() -> None:
    body = (
        b'{"usage":{"input_tokens":%d,"cache_creation_input_tokens":20,'
        b'"cache_read_input_tokens":%d}}'
    )
    assert patch_answer(body % (1, 79), 0) == body % (80, 0)


@pytest.mark.parametrize(
    "body",
    [
        b'{"usage":{"prompt_tokens":100,"total_tokens":110}}',
        b'{"usage":{"prompt_tokens":100,"prompt_tokens_details":null}}',
        b'{"usage":{"prompt_tokens":100,"prompt_tokens_details":{}}}',
        # Engines that do not report it say null beside other details.
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":null,"multimodal_tokens":{"image":9}}}}',
        b'{"usage":null,"note":"cached_tokens"}',
        b'{"usage":[],"note":"cached_tokens"}',
        b'{"note":"cached_tokens"}',
        b'{"usage":{"input_tokens":5,"cache_read_input_tokens":null}}',
        b'{"usage":{"output_tokens":5},"text":"cache_read_input_tokens"}',
        b'{"response":{"usage":null,"note":"cached_tokens"}}',
        b'{"response":"cached_tokens"}',
        b'{"choices":[{"delta":{"content":"\\"usage\\":{\\"cached_tokens\\":5}"}}]}',
        b'{"choices":[{"usage":{"prompt_tokens_details":{"cached_tokens":5}}}]}',
        b'{"metadata":{"usage":{"prompt_tokens_details":{"cached_tokens":5}}}}',
        b'{"delta":{"arguments":{"cached_tokens":5}}}',
        b'["cached_tokens"]',
        b"cached_tokens",
        b"[DONE]",
        b"",
        b'{"usage":{"prompt_tokens_details":{"cached_tokens":5}',
    ],
)
def test_absent_stays_absent(body: bytes) -> None:
    assert patch_answer(body, 3) is body
    event = b"event: e\ndata: " + body + b"\n\n"
    assert patch_event(event, 3) == event


def test_lookalikes_beside_the_real_one() -> None:
    body = (
        b'{"tools":[{"usage":{"prompt_tokens_details":{"cached_tokens":5}}}],'
        b'"cached_tokens":5,"usage":{"prompt_tokens":9,"cached_tokens":5,'
        b'"prompt_tokens_details":{"cached_tokens":5,"nested":{"cached_tokens":5}}}}'
    )
    expected = body.replace(
        b'"prompt_tokens_details":{"cached_tokens":5,"n',
        b'"prompt_tokens_details":{"cached_tokens":3,"n',
    )
    assert patch_answer(body, 3) == expected


def test_spaces_between_members_may_go_values_stay() -> None:
    body = b'{ "a" : [ 1 , 1e999 ] , "usage" : {"prompt_tokens_details": {"cached_tokens": 5 } } }'
    patched = patch_answer(body, 3)
    assert b"[ 1 , 1e999 ]" in patched
    assert json.loads(patched)["usage"] == {"prompt_tokens_details": {"cached_tokens": 3}}


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
@pytest.mark.parametrize(
    "prefix", [b"data: ", b"data:", b"event: message_delta\ndata: ", b": c\ndata: "]
)
def test_events(end: bytes, prefix: bytes) -> None:
    for before, after in (
        (CHUNK % 99, CHUNK % 3),
        (COMPLETED % 99, COMPLETED % 3),
        (MESSAGE_DELTA % (1, 99), MESSAGE_DELTA % (97, 3)),
        (MESSAGE_START % (1, 99), MESSAGE_START % (97, 3)),
    ):
        assert patch_event(prefix + before + end, 3) == prefix + after + end


@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize("before", [b": ", b": data:", b"id: ", b"event: "])
def test_the_same_text_before_the_data_stays(before: bytes, end: bytes) -> None:
    talk = before + CHUNK % 99 + end
    assert patch_event(talk + b"data: " + CHUNK % 99 + end * 2, 3) == (
        talk + b"data: " + CHUNK % 3 + end * 2
    )


def test_done_and_comments() -> None:
    for event in (b"data: [DONE]\n\n", b": cached_tokens\n\n", b"\n\n", b""):
        assert patch_event(event, 3) == event


@pytest.mark.parametrize(
    ("handoff", "carried"),
    [
        (None, None),
        (b"{}", None),
        (b'{"remote_prefill_cached_tokens":null}', None),
        (b'{"remote_prefill_cached_tokens":0}', 0),
        (b'{"remote_prefill_cached_tokens":256}', 256),
        (b'{"remote_host":"remote_prefill_cached_tokens"}', None),
        (b'{"nested":{"remote_prefill_cached_tokens":1}}', None),
        (b"[]", None),
    ],
)
def test_carried(handoff: bytes | None, carried: int | None) -> None:
    assert carried_tokens(handoff) == carried


@pytest.mark.parametrize(
    ("usage", "cached"),
    [
        (None, None),
        ({}, None),
        ({"prompt_tokens": 5}, None),
        ({"prompt_tokens_details": None}, None),
        ({"prompt_tokens_details": {"cached_tokens": 0}}, 0),
        ({"prompt_tokens_details": {"cached_tokens": 64}}, 64),
        ({"input_tokens_details": {"cached_tokens": 64}}, 64),
        ({"cache_read_input_tokens": 64, "input_tokens": 3}, 64),
    ],
)
def test_only_what_usage_says_in_so_many_words(usage: Any, cached: int | None) -> None:
    assert detailed_tokens(read_members(json.dumps({"usage": usage}).encode())) == cached


@pytest.mark.parametrize(
    ("data", "cached"),
    [
        (CHUNK % 64, 64),
        (CHUNK % 0, 0),
        (COMPLETED % 64, 64),
        (MESSAGE_DELTA % (1, 64), 64),
        # Written before the prompt is read.
        (MESSAGE_START % (1, 0), None),
        (b'{"choices":[{"text":"cached_tokens"}],"usage":{"prompt_tokens_details":null}}', None),
        (b"[DONE]", None),
        (b'{"cached_tokens":', None),
    ],
)
def test_what_one_event_tells(data: bytes, cached: int | None) -> None:
    assert streamed_tokens(b"event: x\ndata: " + data + b"\n\n") == cached


def test_tokens_of_an_answer() -> None:
    assert written_tokens(read_members(b'{"usage":{"completion_tokens":7}}')) == 7
    assert written_tokens(read_members(b'{"usage":{"output_tokens":7}}')) == 7
    assert written_tokens(read_members(b'{"usage":null}')) is None


@pytest.mark.parametrize(
    ("answer", "cached"),
    [
        (CHAT % 48, 48),
        (RESPONSE % 0, 0),
        (MESSAGE % (52, 48), 48),
        # Engines before 0.32 leave the details out where nothing was cached.
        (b'{"usage":{"prompt_tokens":100}}', 0),
        (b'{"usage":{"prompt_tokens_details":null}}', 0),
        (b'{"usage":{"prompt_tokens_details":{"cached_tokens":null}}}', 0),
        (b'{"usage":null}', None),
        (b'{"cached_tokens":5}', None),
        (b"{}", None),
    ],
)
def test_read(answer: bytes, cached: int | None) -> None:
    assert read_cached_tokens(read_members(answer)) == cached
