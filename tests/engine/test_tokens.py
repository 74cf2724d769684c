"""Through the router, answers are the aggregated engine's, and decode loaded what prefill read."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

from engine.world import (
    EXPLAIN,
    LENGTHS,
    Ledger,
    World,
    assert_idle,
    at_once,
    complete,
    token_ids,
)
from real_engine.launch import MODEL_NAME

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
@pytest.mark.parametrize("length", LENGTHS)
def test_one_by_one(world: World, client: httpx.Client, length: int, is_stream: bool) -> None:
    prompt = token_ids(length, f"one {is_stream}")
    ledger = Ledger(world)
    tokens = complete(client, world.router.url, prompt, is_stream=is_stream)
    ledger.assert_loaded([length])
    assert tokens == complete(client, world.aggregated.url, prompt)
    assert_idle(world)


@pytest.mark.parametrize("is_stream", [False, True], ids=["plain", "stream"])
def test_24_at_once(world: World, client: httpx.Client, is_stream: bool) -> None:
    prompts = [token_ids(length, f"{n} {is_stream}") for n in range(3) for length in LENGTHS]
    expected = [complete(client, world.aggregated.url, prompt) for prompt in prompts]
    ledger = Ledger(world)
    answers = at_once(
        lambda prompt: complete(client, world.router.url, prompt, is_stream=is_stream), prompts
    )
    ledger.assert_loaded(LENGTHS * 3)
    assert answers == expected
    assert_idle(world)


def test_different_prompts_have_different_answers(world: World, client: httpx.Client) -> None:
    """Else equal answers would say nothing about the KV cache they come from."""
    prompts = [token_ids(length, f"one {False}") for length in LENGTHS]
    answers = {tuple(complete(client, world.aggregated.url, prompt)) for prompt in prompts}
    assert len(answers) == len(LENGTHS)


@pytest.mark.parametrize("endpoint", ["/v1/completions", "/v1/chat/completions"])
@pytest.mark.parametrize(
    "change",
    [
        pytest.param({"n": 3, "temperature": 1.0, "seed": 11}, id="n=3"),
        pytest.param({"echo": True}, id="echo"),
        pytest.param({"prompt_logprobs": 1}, id="prompt_logprobs"),
    ],
)
def test_what_one_engine_must_serve(
    world: World, client: httpx.Client, endpoint: str, change: dict[str, Any]
) -> None:
    text = "for name in names: print(name)\n" * 20
    is_chat = endpoint == "/v1/chat/completions"
    prompt = {"messages": [{"role": "user", "content": text}]} if is_chat else {"prompt": text}
    body = {"model": MODEL_NAME, "max_tokens": 12, "temperature": 0, **prompt, **change}
    _assert_same_choices(world, client, endpoint, body)


def test_several_prompts(world: World, client: httpx.Client) -> None:
    prompts = [token_ids(length, "several") for length in (300, 129, 300)]
    body = {"model": MODEL_NAME, "prompt": prompts, "max_tokens": 12, "temperature": 0}
    _assert_same_choices(world, client, "/v1/completions", {**body, "return_token_ids": True})


def _assert_same_choices(
    world: World, client: httpx.Client, endpoint: str, body: dict[str, Any]
) -> None:
    """The router's answer has the aggregated engine's choices, and says that one engine served."""
    ours = client.post(f"{world.router.url}{endpoint}", json=body, headers=EXPLAIN)
    theirs = client.post(f"{world.aggregated.url}{endpoint}", json=body)
    assert ours.status_code == theirs.status_code == 200, ours.text
    assert ours.headers["x-transload-path"] == "local"
    for part in ("choices", "prompt_logprobs"):
        assert ours.json().get(part) == theirs.json().get(part)
    assert_idle(world)
