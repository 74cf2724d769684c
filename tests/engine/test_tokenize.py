"""The router's token ids against the running engine's: probes, endpoints, ids instead of text."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

import engine_env
from engine.world import World
from real_engine import launch
from real_engine.launch import MODEL_NAME
from record_tokenize import NUM_CHATS, NUM_TEXTS, record
from transload_router.core.bodies.endpoints import ENDPOINTS
from transload_router.core.bodies.members import read_members
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.job import KnownTokens, Unknown
from transload_router.core.tokens.read import read_prompt
from transload_router.core.tokens.tokens import Tokens
from transload_router.io.tokenizer import EngineTokenizer, check_exactness, load_tokens
from transload_router.io.tokenizer.exactness import probes

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

_CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": "é"}'}}
_CHAT: dict[str, Any] = {
    "model": MODEL_NAME,
    "messages": [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": [{"type": "text", "text": "naïve 東京 <|im_end|>"}]},
        {"role": "assistant", "content": None, "tool_calls": [_CALL]},
        {"role": "tool", "tool_call_id": "c1", "content": "🙂"},
    ],
    "max_tokens": 1,
    "return_token_ids": True,
}


@pytest.fixture(scope="module")
def tokens() -> Tokens:
    return load_tokens(str(launch.ensure_model(engine_env.ensure())))


def _ids(tokens: Tokens, path: str, body: dict[str, Any]) -> list[int]:
    job = read_prompt(ENDPOINTS[path].name, read_members(json.dumps(body).encode()))
    assert not isinstance(job, Unknown), body
    if isinstance(job, KnownTokens):
        return list(memoryview(job.tokens).cast("I"))
    prompt = tokens.prompt(job, Identity(MODEL_NAME))
    assert isinstance(prompt, Prompt), (prompt, body)
    return list(memoryview(prompt.tokens).cast("I"))


async def test_the_check_at_start_up_finds_the_tokenizer_exact(
    world: World, tokens: Tokens
) -> None:
    async with httpx.AsyncClient(base_url=world.prefill.url, timeout=60) as engine:

        async def ask(body: bytes) -> bytes | None:
            answer = await engine.post("/tokenize", content=body, headers=_JSON)
            return answer.content if answer.status_code == 200 else None

        verdict = await check_exactness(ask, tokens, MODEL_NAME)

        assert verdict.mismatches == []
        assert (verdict.unknown, verdict.refused) == ([], [])
        assert verdict.num_equal == len(probes())
        asked = EngineTokenizer(ask, MODEL_NAME, deadline_s=60)
        for job in probes().values():
            ours, theirs = (
                tokens.prompt(job, Identity("m")),
                await asked.tokenize(job, Identity("m")),
            )
            assert isinstance(ours, Prompt)
            assert isinstance(theirs, Prompt)
            assert ours.tokens == theirs.tokens


_JSON = {"content-type": "application/json"}


def test_every_kind_of_prompt_has_the_engines_ids(world: World, tokens: Tokens) -> None:
    """The recording again, from this engine and its model."""
    vectors = list(record(world.aggregated.url))

    assert len(vectors) >= NUM_CHATS + NUM_TEXTS
    differing = [
        vector["body"]
        for vector in vectors
        if _ids(tokens, vector["path"], vector["body"]) != vector["tokens"]
    ]
    assert differing == []


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", _CHAT),
        (
            "/v1/completions",
            {"model": MODEL_NAME, "prompt": "a 東京", "max_tokens": 1, "return_token_ids": True},
        ),
    ],
)
def test_generating_reads_the_same_ids(
    world: World, client: httpx.Client, tokens: Tokens, path: str, body: dict[str, Any]
) -> None:
    answer = client.post(f"{world.aggregated.url}{path}", json=body).raise_for_status().json()

    told = answer["choices"][0].get("prompt_token_ids") or answer["prompt_token_ids"]
    assert told == _ids(tokens, path, body)


def test_an_engine_takes_the_routers_ids_instead_of_the_text(
    world: World, client: httpx.Client, tokens: Tokens
) -> None:
    """Ids of another conversation show that the text was not read."""
    other = _ids(tokens, "/v1/chat/completions", _CHAT)
    body = {
        **_CHAT,
        "messages": [{"role": "user", "content": "hi"}],
        "kv_transfer_params": {"prompt_token_ids": other},
    }

    answer = client.post(f"{world.aggregated.url}/v1/chat/completions", json=body)

    assert answer.raise_for_status().json()["prompt_token_ids"] == other
