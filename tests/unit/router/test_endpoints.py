"""The body table, against the rules of both legs and the field lists of vLLM 0.32.0."""

import json
from collections.abc import Mapping
from typing import Any

import pytest

from transload_router.core.bodies.endpoints import (
    ASK_HANDOFF,
    CHAT,
    COMPLETIONS,
    ENDPOINTS,
    GENERATE,
    MESSAGES,
    RESPONSES,
    TRANSFER_MEMBERS,
    Endpoint,
    estimate_tokens,
    local_reason,
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
from transload_router.core.types import Dialect

Json = dict[str, Any]

ALL = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)
OPENAI_LIKE = ("chat", "completions")
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

BASE: Mapping[str, Json] = {
    "chat": {"model": "m", "messages": [{"role": "user", "content": "hi"}]},
    "completions": {"model": "m", "prompt": "hi"},
    "responses": {"model": "m", "input": "hi"},
    "messages": {"model": "m", "messages": [], "max_tokens": 500},
    "generate": {"model": "m", "token_ids": [1, 2], "sampling_params": {}},
}


def with_sampling(endpoint: Endpoint, fields: Json) -> Json:
    body = json.loads(json.dumps(BASE[endpoint.name]))
    (body["sampling_params"] if endpoint is GENERATE else body).update(fields)
    return dict(body)


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


def reason(endpoint: Endpoint, body: Json | bytes) -> str | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return local_reason(endpoint, read_members(raw))


def ids(endpoint: Endpoint) -> str:
    return endpoint.name


each_endpoint = pytest.mark.parametrize("endpoint", ALL, ids=ids)


def test_paths_and_dialects() -> None:
    assert {path: (row.name, row.dialect) for path, row in ENDPOINTS.items()} == {
        "/v1/chat/completions": ("chat", Dialect.OPENAI),
        "/v1/completions": ("completions", Dialect.OPENAI),
        "/v1/responses": ("responses", Dialect.RESPONSES),
        "/v1/messages": ("messages", Dialect.ANTHROPIC),
        "/inference/v1/generate": ("generate", Dialect.OPENAI),
    }


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


# What clients may not set.


TRANSFER = {"do_remote_prefill": True, "remote_host": "169.254.169.254", "remote_port": 80}
EVERYWHERE = (*ALL, None)


def strip(endpoint: Endpoint | None, body: Json | bytes) -> Json | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    stripped = strip_transfer(endpoint, read_members(raw))
    return None if stripped is None else {k: json.loads(bytes(v)) for k, v in stripped.items()}


@pytest.mark.parametrize("endpoint", EVERYWHERE)
@pytest.mark.parametrize("key", TRANSFER_MEMBERS)
def test_transfer_members_are_taken_out(endpoint: Endpoint | None, key: str) -> None:
    for value in (TRANSFER, None, {}, "x", 5):
        assert strip(endpoint, {"model": "m", key: value}) == {"model": "m"}
    escaped = b'{"model":"m","%s\\u%04x":{"a":1}}' % (key[:-1].encode(), ord(key[-1]))
    assert strip(endpoint, escaped) == {"model": "m"}
    twice = b'{"%s":{"a":1},"model":"m","%s":null}' % (key.encode(), key.encode())
    assert strip(endpoint, twice) == {"model": "m"}
    lenient = b'{"%s":{"a":NaN},"model":"m"}' % key.encode()
    assert strip(endpoint, lenient) == {"model": "m"}


@pytest.mark.parametrize("endpoint", EVERYWHERE)
@pytest.mark.parametrize("key", TRANSFER_MEMBERS)
def test_side_doors_are_shut(endpoint: Endpoint | None, key: str) -> None:
    if endpoint is not GENERATE:
        body: Json = {"vllm_xargs": {key: TRANSFER, "session_id": "s"}}
        assert strip(endpoint, body) == {"vllm_xargs": {"session_id": "s"}}
        twice = b'{"vllm_xargs":{},"vllm_xarg\\u0073":{"%s":1,"%s":2}}' % (
            key.encode(),
            key.encode(),
        )
        assert strip(endpoint, twice) == {"vllm_xargs": {}}
        lenient = b'{"vllm_xargs":{"x":1e9,"%s":NaN}}' % key.encode()
        assert strip(endpoint, lenient) == {"vllm_xargs": {"x": 1e9}}
    if endpoint in (GENERATE, None):
        body = {"sampling_params": {"n": 1, "extra_args": {key: TRANSFER, "a": 1}}}
        assert strip(endpoint, body) == {"sampling_params": {"n": 1, "extra_args": {"a": 1}}}


@pytest.mark.parametrize("endpoint", EVERYWHERE)
def test_nothing_to_take_out(endpoint: Endpoint | None) -> None:
    for body in (
        {},
        {"metadata": {"kv_transfer_params": 1}},
        {"messages": [{"kv_transfer_params": 1}]},
        {"vllm_xargs": None},
        {"vllm_xargs": ["kv_transfer_params"]},
        {"sampling_params": {"extra_args": None}},
        {"sampling_params": None},
        {"text": "kv_transfer_params"},
    ):
        assert strip(endpoint, body) is None


def test_both_at_once() -> None:
    body = {"kv_transfer_params": {}, "vllm_xargs": {"kv_transfer_params": {}}, "model": "m"}
    assert strip(CHAT, body) == {"vllm_xargs": {}, "model": "m"}


# What one engine must serve.


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        (b'"one"', None),
        (b'"[\\"not\\",\\"a list\\"]"', None),
        (b"null", None),
        (b"[]", None),
        (b"[1,2,3]", None),
        (b"[ 1 , 2 ]", None),
        (b'["one"]', None),
        (b"[[1,2]]", None),
        (b"[ \n [ 1 ] ]", None),
        (b'["a","b"]', "several_prompts"),
        (b'["a", "a"]', "several_prompts"),
        (b"[[1],[2]]", "several_prompts"),
        (b" [\n\t[1] , [2]]", "several_prompts"),
        (b"[" + b" " * 100 + b'"a","b"]', "several_prompts"),
        (b"[" + b"\n" * 100 + b"[1],[2]]", "several_prompts"),
        (b'["\\ud800","b"]', "several_prompts"),
        (b"[[NaN],[2]]", "several_prompts"),
    ],
)
def test_one_handoff_one_prompt(prompt: bytes, expected: str | None) -> None:
    assert reason(COMPLETIONS, b'{"prompt":' + prompt + b"}") == expected


def test_the_last_of_two_prompts_counts() -> None:
    assert reason(COMPLETIONS, b'{"prompt":"a","prompt":["a","b"]}') == "several_prompts"
    assert reason(COMPLETIONS, b'{"prompt":["a","b"],"prompt":"a"}') is None


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, GENERATE], ids=ids)
@pytest.mark.parametrize("key", ["n", "best_of"])
def test_several_choices(endpoint: Endpoint, key: str) -> None:
    for value in (2, 3, 0, -1, "2", 1.5, True, [2], 10**30):
        assert reason(endpoint, with_sampling(endpoint, {key: value})) == "several_choices"
    for unset in (1, None):
        assert reason(endpoint, with_sampling(endpoint, {key: unset})) is None


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, GENERATE], ids=ids)
@pytest.mark.parametrize(
    "key",
    [
        "echo",
        "prompt_logprobs",
        "prompt_logprob_token_ids",
        "prompt_logprob_start",
        "use_beam_search",
        "prompt_embeds",
        "skip_reading_prefix_cache",
    ],
)
def test_what_one_engine_knows(endpoint: Endpoint, key: str) -> None:
    elsewhere = {
        "use_beam_search": ("chat", "completions"),
        "prompt_embeds": ("completions",),
        "skip_reading_prefix_cache": ("generate",),
    }
    if endpoint.name not in elsewhere.get(key, (endpoint.name,)):
        return
    for value in (True, 0, 1, "x", [1], -1):
        assert reason(endpoint, with_sampling(endpoint, {key: value})) == key
    for unset in (None, False):
        assert reason(endpoint, with_sampling(endpoint, {key: unset})) is None


def test_no_output() -> None:
    assert reason(COMPLETIONS, {"prompt": "a", "max_tokens": 0}) == "no_output"
    for value in (None, 1, "0"):
        assert reason(COMPLETIONS, {"prompt": "a", "max_tokens": value}) is None


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=ids)
def test_cut_to_fit(endpoint: Endpoint) -> None:
    """A cut that depends on the length keys would give the legs different prompts."""
    for value in (-1, "-1", "x", 1.5):
        body = with_sampling(endpoint, {"truncate_prompt_tokens": value})
        assert reason(endpoint, body) == "truncation"
    for kept in (None, 0, 100):
        body = with_sampling(endpoint, {"truncate_prompt_tokens": kept})
        assert reason(endpoint, body) is None


def test_responses_cut_to_fit() -> None:
    for value, expected in (
        ("auto", "truncation"),
        ("disabled", None),
        (None, None),
        (5, "truncation"),
    ):
        assert reason(RESPONSES, {"input": "a", "truncation": value}) == expected


@pytest.mark.parametrize("key", ["previous_response_id", "background"])
def test_responses_of_one_engine(key: str) -> None:
    for value in (True, "resp_1", "", 0):
        assert reason(RESPONSES, {"input": "a", key: value}) == key
    for unset in (None, False):
        assert reason(RESPONSES, {"input": "a", key: unset}) is None


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES], ids=ids)
@pytest.mark.parametrize(
    ("tools", "expected"),
    [
        (b"null", None),
        (b"[]", None),
        (b'[{"name":"f","input_schema":{}}]', None),
        (b'[{"type":"function","name":"f"}]', None),
        (b'[{"type":"custom","name":"f"}, {"type":"function"}]', None),
        (b'[{"type":"web_search"}]', "server_tools"),
        (b'[{"type":"function"},{"type":"code_interpreter","container":{}}]', "server_tools"),
        (b'[{"type":"mcp"}]', "server_tools"),
        (b'[{"typ\\u0065":"mcp"}]', "server_tools"),
        (b'[{"type":"function","type":"mcp"}]', "server_tools"),
        (b'[{"type":5}]', "server_tools"),
        (b'[{"type":"mcp","x":NaN}]', "server_tools"),
        (b'[{"type":"mcp"},NaN]', "server_tools"),
    ],
)
def test_server_tools(endpoint: Endpoint, tools: bytes, expected: str | None) -> None:
    assert reason(endpoint, b'{"tools":' + tools + b"}") == expected


def test_chat_tools_are_the_clients() -> None:
    assert reason(CHAT, {"messages": [], "tools": [{"type": "function", "function": {}}]}) is None


@each_endpoint
def test_plain_requests_are_shared(endpoint: Endpoint) -> None:
    assert reason(endpoint, BASE[endpoint.name]) is None
    assert reason(endpoint, b"{}") is None
    plain = {"stream": True, "logprobs": 5, "stop": ["a"], "max_tokens": 5, "seed": 1}
    assert reason(endpoint, with_sampling(endpoint, plain)) is None


def test_generate_speaks_of_the_nested_object() -> None:
    assert reason(GENERATE, {"token_ids": [1], "n": 3}) is None
    assert reason(GENERATE, b'{"sampling_params":{"n":3,"temperature":NaN}}') == "several_choices"


# Sizes and release.


@pytest.mark.parametrize(
    ("endpoint", "fields", "answer"),
    [
        (CHAT, {"max_tokens": 9}, 9),
        (CHAT, {"max_completion_tokens": 7, "max_tokens": 9}, 7),
        (CHAT, {}, 256),
        (CHAT, {"max_tokens": None}, 256),
        (CHAT, {"max_tokens": "x"}, 256),
        (CHAT, {"max_tokens": -5}, 256),
        (CHAT, {"max_tokens": 10**9}, 1024),
        (RESPONSES, {"max_output_tokens": 11}, 11),
        (GENERATE, {"max_tokens": 12}, 12),
    ],
)
def test_estimate(endpoint: Endpoint, fields: Json, answer: int) -> None:
    body = json.dumps(with_sampling(endpoint, fields)).encode()
    assert estimate_tokens(endpoint, read_members(body), 400) == (100, answer)


def test_estimate_is_never_nothing() -> None:
    assert estimate_tokens(CHAT, read_members(b"{}"), 2) == (1, 256)


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
