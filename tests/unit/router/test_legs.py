"""Both legs' bodies, against the rules of both legs and the field lists of vLLM 0.32.0."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from support.bodies import BASE, Json, each_endpoint, with_sampling
from transload_router.core.bodies.endpoints import (
    ASK_HANDOFF,
    CHAT,
    COMPLETIONS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    Endpoint,
    strip_transfer,
)
from transload_router.core.bodies.legs import (
    RELEASE_PATH,
    decode_body,
    prefill_body,
    read_token_ids,
    release_body,
)
from transload_router.core.bodies.members import read_members

HANDOFF = b'{"do_remote_prefill":true,"remote_block_ids":[[1,2]],"n":18446744073709551615}'

# What the prefill leg must carry, whatever the client said.
LENGTHS: Mapping[str, tuple[str, ...]] = {
    "chat": ("max_tokens", "max_completion_tokens"),
    "completions": ("max_tokens",),
    "responses": ("max_output_tokens",),
    "messages": ("max_tokens",),
    "generate": ("max_tokens",),
}
# What would end the leg otherwise, clash with one token and no stream, or ask for results.
_SAMPLING_GONE = (
    "stop",
    "stop_token_ids",
    "min_tokens",
    "logprobs",
    "prompt_logprobs",
    "logprob_token_ids",
    "best_of",
)
GONE: Mapping[str, tuple[str, ...]] = {
    "chat": (*_SAMPLING_GONE, "stream_options", "top_logprobs", "use_beam_search"),
    "completions": (*_SAMPLING_GONE, "stream_options", "use_beam_search", "echo"),
    "responses": ("stop", "stop_token_ids", "stream_options", "top_logprobs", "include"),
    "messages": ("stop_sequences",),
    "generate": (*_SAMPLING_GONE, "trace_decode_token_ids"),
}
# What makes the prompt, or makes the cache distinguish it: the same on both legs.
_MEDIA = ("mm_processor_kwargs", "media_io_kwargs")
PROMPT: Mapping[str, tuple[str, ...]] = {
    "chat": (
        "messages",
        "tools",
        "tool_choice",
        "chat_template",
        "chat_template_kwargs",
        "documents",
        "reasoning_effort",
        "response_format",
        "structured_outputs",
        "add_generation_prompt",
        "continue_final_message",
        "add_special_tokens",
        "include_reasoning",
        "cache_salt",
        "thinking_token_budget",
        "some_future_field",
        *_MEDIA,
    ),
    "completions": (
        "prompt",
        "suffix",
        "add_special_tokens",
        "response_format",
        "structured_outputs",
        "cache_salt",
        "some_future_field",
    ),
    "responses": (
        "input",
        "instructions",
        "tools",
        "tool_choice",
        "reasoning",
        "text",
        "truncation",
        "previous_input_messages",
        "chat_template_kwargs",
        "structured_outputs",
        "cache_salt",
        "some_future_field",
        *_MEDIA,
    ),
    "messages": (
        "messages",
        "system",
        "tools",
        "tool_choice",
        "thinking",
        "output_config",
        "chat_template_kwargs",
        "cache_salt",
        "some_future_field",
    ),
    "generate": (
        "token_ids",
        "features",
        "content_parts",
        "cache_salt",
        "reasoning_ended",
        "some_future_field",
    ),
}
# Neither the prompt nor the length, and the same on both legs.
KEPT = ("model", "temperature", "top_p", "seed", "logit_bias", "priority", "user")
VALUES: Mapping[str, Any] = {
    "present": 500,
    "null": None,
    "false": False,
    "zero": 0,
    "string": "é",
    "list": ["a", 1],
    "object": {"a": [None]},
}


def sampling_of(endpoint: Endpoint, leg: Json) -> Json:
    return dict(leg["sampling_params"]) if endpoint is GENERATE else leg


def prefill(endpoint: Endpoint, body: Json | bytes) -> Json:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    members = read_members(raw)
    before = dict(members)
    stripped = strip_transfer(endpoint, members)
    leg = prefill_body(endpoint, members if stripped is None else stripped)
    assert members == before, "the client's members were changed"
    return dict(json.loads(leg))


# The prefill leg.


@each_endpoint
def test_lengths_are_one(endpoint: Endpoint) -> None:
    """Whatever the client wrote, or did not write, in any of the length keys."""
    for key in LENGTHS[endpoint.name]:
        for value in VALUES.values():
            leg = sampling_of(endpoint, prefill(endpoint, with_sampling(endpoint, {key: value})))
            assert {name: leg[name] for name in LENGTHS[endpoint.name]} == dict.fromkeys(
                LENGTHS[endpoint.name], 1
            )
    bare = dict(BASE[endpoint.name])
    bare.pop("max_tokens", None)
    bare.pop("sampling_params", None)
    leg = sampling_of(endpoint, prefill(endpoint, bare))
    assert all(leg[name] == 1 for name in LENGTHS[endpoint.name])


@each_endpoint
def test_ends_by_length(endpoint: Endpoint) -> None:
    for value in VALUES.values():
        leg = sampling_of(
            endpoint, prefill(endpoint, with_sampling(endpoint, {"ignore_eos": value}))
        )
        if endpoint is MESSAGES:
            # This API has no such field.
            assert leg["ignore_eos"] == value
        else:
            assert leg["ignore_eos"] is True
    assert ("ignore_eos" in sampling_of(endpoint, prefill(endpoint, BASE[endpoint.name]))) == (
        endpoint is not MESSAGES
    )


@each_endpoint
def test_never_streams(endpoint: Endpoint) -> None:
    for value in VALUES.values():
        body = {**BASE[endpoint.name], "stream": value}
        assert prefill(endpoint, body)["stream"] is False
    assert prefill(endpoint, BASE[endpoint.name]).get("stream", False) is False
    leg = prefill(
        endpoint,
        {**BASE[endpoint.name], "stream": True, "stream_options": {"include_usage": True}},
    )
    assert leg["stream"] is False
    if endpoint is not MESSAGES:
        assert "stream_options" not in leg


@each_endpoint
def test_one_choice(endpoint: Endpoint) -> None:
    if endpoint in (CHAT, COMPLETIONS, GENERATE):
        for value in VALUES.values():
            leg = prefill(endpoint, with_sampling(endpoint, {"n": value, "best_of": value}))
            assert sampling_of(endpoint, leg)["n"] == 1
            assert "best_of" not in sampling_of(endpoint, leg)


@each_endpoint
def test_results_and_stops_are_gone(endpoint: Endpoint) -> None:
    for key in GONE[endpoint.name]:
        for value in VALUES.values():
            leg = prefill(endpoint, with_sampling(endpoint, {key: value}))
            assert key not in sampling_of(endpoint, leg), (key, value)


@each_endpoint
def test_prompt_is_the_same(endpoint: Endpoint) -> None:
    """Raw text, so that no spelling changes what a template renders."""
    spellings = (
        b'{"z":1.0,"a":1e2,"\\u00e9":[ "\\ud83d\\ude00" ]}',
        b"null",
        b'""',
        b"1.50",
        b"NaN",
    )
    for key in (*PROMPT[endpoint.name], *KEPT):
        assert key not in endpoint.drops
        for spelling in spellings:
            raw = b'{"model":"m","%s" : %s , "stream":true}' % (key.encode(), spelling)
            leg = read_members(prefill_body(endpoint, read_members(raw)))
            assert bytes(leg[key]) == spelling


def test_generate_keeps_other_sampling_fields() -> None:
    raw = (
        b'{"token_ids":[1],"sampling_params":{"seed":18446744073709551615,"temperature":1e-1,'
        b'"stop":["a"],"skip_special_tokens":false},"stop":"top","max_tokens":9}'
    )
    leg = read_members(prefill_body(GENERATE, read_members(raw)))
    nested = read_members(bytes(leg["sampling_params"]))
    assert {name: bytes(value) for name, value in nested.items()} == {
        "seed": b"18446744073709551615",
        "temperature": b"1e-1",
        "skip_special_tokens": b"false",
        "max_tokens": b"1",
        "ignore_eos": b"true",
    }
    assert bytes(leg["max_tokens"]) == b"9"


def test_generate_with_lenient_sampling() -> None:
    leg = prefill(
        GENERATE, b'{"token_ids":[1],"sampling_params":{"temperature":NaN,"max_tokens":5}}'
    )
    assert leg["sampling_params"]["max_tokens"] == 1


@pytest.mark.parametrize("nested", [None, 5, "x", [], True])
def test_generate_without_sampling(nested: object) -> None:
    leg = prefill(GENERATE, {"token_ids": [1], "sampling_params": nested})
    assert leg["sampling_params"] == {"max_tokens": 1, "ignore_eos": True}


def test_responses_leave_nothing_behind() -> None:
    for body in ({"background": True}, {"background": None, "store": True}, {}):
        leg = prefill(RESPONSES, {**BASE["responses"], **body})
        assert leg["store"] is False
        assert not leg.get("background")


@each_endpoint
def test_asks_for_a_handoff(endpoint: Endpoint) -> None:
    leg = prefill(endpoint, BASE[endpoint.name])
    assert leg["kv_transfer_params"] == json.loads(bytes(ASK_HANDOFF))
    assert leg["kv_transfer_params"]["do_remote_decode"] is True
    assert leg["kv_transfer_params"]["do_remote_prefill"] is False


@each_endpoint
def test_duplicates_and_escapes_do_not_escape_the_table(endpoint: Endpoint) -> None:
    if endpoint is GENERATE:
        raw = (
            b'{"sampling_params":{"max_tokens":1},'
            b'"sampling_params":{"max_token\\u0073":9,"max_tokens":500}}'
        )
    else:
        length = LENGTHS[endpoint.name][0].encode()
        raw = b'{"%s":1,"%s\\u0073":9,"%s":500}' % (length, length[:-1], length)
    leg = prefill(endpoint, raw)
    assert sampling_of(endpoint, leg)[LENGTHS[endpoint.name][0]] == 1


# The decode leg.


BODIES = (
    b"{}",
    b"{ }",
    b'{"max_tokens":null}',
    b'{"model":"m","prompt":"p"}',
    b' {\n "seed" : 18446744073709551615,\t"temperature":1.0 , "top_p":1e999} \r\n',
    b'{"b":1,"a":2,"b":3}',
    b'{"metadata":{"note":"}"},"x":NaN}',
    b'{"text":"\\ud800 \\u00e9"}',
    '{"text":"日本 😀"}\n\n'.encode(),
)


@pytest.mark.parametrize("body", BODIES)
def test_decode_is_the_clients_bytes_and_the_handoff(body: bytes) -> None:
    members = read_members(body)
    assert decode_body(CHAT, body, members, None) == body
    whole = decode_body(CHAT, body, members, HANDOFF)
    insertion = b'"kv_transfer_params":' + HANDOFF
    at = whole.index(insertion)
    before, after = whole[:at], whole[at + len(insertion) :]
    assert before.removesuffix(b",") + after == body
    assert json.loads(whole)["kv_transfer_params"] == json.loads(HANDOFF)


# Token ids in place of text.

IDS = b"[1,2,3]"


def test_chats_are_given_ids_within_the_transfer_parameters() -> None:
    body = b'{"messages":[{"role":"user","content":"hi"}],"max_tokens":9}'
    members = read_members(body)
    prefill = json.loads(prefill_body(CHAT, members, IDS))
    assert prefill["kv_transfer_params"]["prompt_token_ids"] == [1, 2, 3]
    assert prefill["kv_transfer_params"]["do_remote_decode"] is True
    assert prefill["messages"] == [{"role": "user", "content": "hi"}]
    decode = json.loads(decode_body(CHAT, body, members, HANDOFF, IDS))
    assert decode["kv_transfer_params"] == {**json.loads(HANDOFF), "prompt_token_ids": [1, 2, 3]}
    alone = decode_body(CHAT, body, members, None, IDS)
    assert alone == body[:-1] + b',"kv_transfer_params":{"prompt_token_ids":[1,2,3]}}'


def test_completions_are_given_ids_as_the_prompt() -> None:
    body = b'{"prompt":"hi","seed":18446744073709551615}'
    members = read_members(body)
    assert json.loads(prefill_body(COMPLETIONS, members, IDS))["prompt"] == [1, 2, 3]
    whole = decode_body(COMPLETIONS, body, members, HANDOFF, IDS)
    assert whole == (
        b'{"prompt":[1,2,3],"seed":18446744073709551615,"kv_transfer_params":' + HANDOFF + b"}"
    )


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES, GENERATE])
def test_other_endpoints_are_given_no_ids(endpoint: Endpoint) -> None:
    body = b'{"input":"hi"}'
    members = read_members(body)
    assert prefill_body(endpoint, members, IDS) == prefill_body(endpoint, members)
    assert decode_body(endpoint, body, members, None, IDS) == body


def test_prefill_is_asked_for_ids() -> None:
    members = read_members(b'{"messages":[],"return_token_ids":false}')
    asked = json.loads(prefill_body(CHAT, members, wants_token_ids=True))
    assert asked["return_token_ids"] is True
    assert "return_token_ids" not in json.loads(prefill_body(CHAT, members))


@pytest.mark.parametrize(
    ("endpoint", "answer", "ids"),
    [
        (CHAT, b'{"prompt_token_ids":[7,8],"choices":[]}', b"[7,8]"),
        (CHAT, b'{"prompt_token_ids":null}', None),
        (CHAT, b'{"choices":[{"prompt_token_ids":[7]}]}', None),
        (COMPLETIONS, b'{"choices":[{"prompt_token_ids":[7]}]}', b"[7]"),
        (COMPLETIONS, b'{"choices":[]}', None),
        (COMPLETIONS, b'{"prompt_token_ids":[7]}', None),
    ],
)
def test_ids_are_read_from_prefills_answer(
    endpoint: Endpoint, answer: bytes, ids: bytes | None
) -> None:
    assert read_token_ids(endpoint, read_members(answer)) == ids


# The release.


def test_release_is_a_completion_that_is_rejected() -> None:
    assert RELEASE_PATH == "/v1/completions"
    body = release_body('m"é', HANDOFF)
    assert HANDOFF in body
    assert json.loads(body) == {
        "model": 'm"é',
        "prompt": [0],
        "max_tokens": 1,
        "stream": True,
        "use_beam_search": True,
        "kv_transfer_params": json.loads(HANDOFF),
    }
