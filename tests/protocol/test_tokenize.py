"""What a real engine made of prompts, against what the router makes: every recorded id."""

import json
from collections import Counter
from typing import Any

import pytest

from support.small_tokenizers import VECTORS, made, recorded_files
from transload_router.core.bodies.endpoints import ENDPOINTS
from transload_router.core.bodies.members import read_members
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import pack_tokens
from transload_router.core.tokens.job import ChatJob, KnownTokens, TextJob, Unknown
from transload_router.core.tokens.read import read_prompt
from transload_router.core.tokens.tokens import Tokens

_LINES = (VECTORS / "vllm-0.32.0" / "tokenize.jsonl").read_text(encoding="utf-8").splitlines()
_CASES = [json.loads(line) for line in _LINES]


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return made(recorded_files())


def _ids(tokens: Tokens, case: dict[str, Any]) -> bytes | Unknown:
    members = read_members(json.dumps(case["body"]).encode())
    job = read_prompt(ENDPOINTS[case["path"]].name, members)
    if isinstance(job, Unknown):
        return job
    if isinstance(job, KnownTokens):
        return job.tokens
    assert isinstance(job, TextJob | ChatJob)
    prompt = tokens.prompt(job, Identity("tiny"))
    return prompt if isinstance(prompt, Unknown) else prompt.tokens


def test_the_vectors_are_all_there() -> None:
    counts = Counter(case["path"] for case in _CASES)

    assert counts == {
        "/v1/chat/completions": 206,
        "/v1/completions": 112,
        "/v1/messages": 9,
        "/v1/responses": 8,
    }


@pytest.mark.parametrize("path", sorted({case["path"] for case in _CASES}))
def test_every_prompt_has_the_engines_ids(tokens: Tokens, path: str) -> None:
    differing = [
        case["body"]
        for case in _CASES
        if case["path"] == path and _ids(tokens, case) != pack_tokens(case["tokens"])
    ]

    assert differing == []


def test_chats_take_every_turn_the_engine_knows() -> None:
    """The recording covers what the test is for; a new one that does not is noticed."""
    chats = [case["body"] for case in _CASES if case["path"] == "/v1/chat/completions"]
    messages = [message for chat in chats for message in chat["messages"]]

    assert {message["role"] for message in messages} == {
        "assistant",
        "developer",
        "system",
        "tool",
        "user",
    }
    for member in ("tool_calls", "reasoning", "reasoning_content", "tool_call_id", "name"):
        assert sum(member in message for message in messages) > 10, member
    for member in ("tools", "chat_template_kwargs", "continue_final_message", "add_special_tokens"):
        assert sum(member in chat for chat in chats) > 10, member
    assert sum(isinstance(message["content"], list) for message in messages) > 50
    assert sum(message["content"] == "" for message in messages) > 20


def test_segments_and_whole_texts_were_both_used(tokens: Tokens) -> None:
    for case in _CASES:
        _ids(tokens, case)

    assert tokens.is_segmented
    assert tokens.stats.num_segment_hits > 1000
    assert 0 < tokens.stats.num_whole < tokens.stats.num_prompts
