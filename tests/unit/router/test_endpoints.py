"""The endpoint table: what clients may not set, what one engine must serve, sizes."""

import json

import pytest

from support.bodies import ALL, BASE, Json, each_endpoint, name_of, with_sampling
from transload_router.core.bodies.endpoints import (
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
from transload_router.core.bodies.members import read_members
from transload_router.core.types import Dialect


def reason(endpoint: Endpoint, body: Json | bytes) -> str | None:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return local_reason(endpoint, read_members(raw))


def test_paths_and_dialects() -> None:
    assert {path: (row.name, row.dialect) for path, row in ENDPOINTS.items()} == {
        "/v1/chat/completions": ("chat", Dialect.OPENAI),
        "/v1/completions": ("completions", Dialect.OPENAI),
        "/v1/responses": ("responses", Dialect.RESPONSES),
        "/v1/messages": ("messages", Dialect.ANTHROPIC),
        "/inference/v1/generate": ("generate", Dialect.OPENAI),
    }


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


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, GENERATE], ids=name_of)
@pytest.mark.parametrize("key", ["n", "best_of"])
def test_several_choices(endpoint: Endpoint, key: str) -> None:
    for value in (2, 3, 0, -1, "2", 1.5, True, [2], 10**30):
        assert reason(endpoint, with_sampling(endpoint, {key: value})) == "several_choices"
    for unset in (1, None):
        assert reason(endpoint, with_sampling(endpoint, {key: unset})) is None


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS, GENERATE], ids=name_of)
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


@pytest.mark.parametrize("endpoint", [CHAT, COMPLETIONS], ids=name_of)
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


@pytest.mark.parametrize("endpoint", [RESPONSES, MESSAGES], ids=name_of)
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


# Sizes.


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
