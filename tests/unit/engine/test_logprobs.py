"""Logprobs, whole and in streams, in vLLM's shapes."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from support.model_server import ModelServer, serve_model
from transload_engine.core.runner import Chosen, Chunk
from transload_engine.server.logprobs import of_chat, of_completion


def _chooses(chunk: Chunk) -> Chosen:
    """`b` or `c` in turn, of which `a` and `b` are the likeliest."""
    asked = chunk.sampling.num_logprobs if chunk.sampling else None
    if asked is None:
        return Chosen(101)
    likeliest = ((100, -0.5), (101, -1.0))[:asked]
    if chunk.num_drawn % 2:
        return Chosen(102, -3.0, 3, likeliest)
    return Chosen(101, -1.0, 2, likeliest)


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve_model() as server:
        server.runner.chooses = _chooses
        yield server


async def _events(asked: Any) -> list[Any]:
    lines = (await asked).text.split("\n\n")
    datas = [line.removeprefix("data: ") for line in lines if line and "[DONE]" not in line]
    return [json.loads(data)["choices"][0]["logprobs"] for data in datas]


async def test_of_a_completion(server: ModelServer) -> None:
    (choice,) = (await server.complete(logprobs=1, max_tokens=2)).json()["choices"]
    assert choice["logprobs"] == {
        "text_offset": [0, 1],
        "token_logprobs": [-1.0, -3.0],
        "tokens": ["b", "c"],
        "top_logprobs": [{"b": -1.0, "a": -0.5}, {"c": -3.0, "a": -0.5}],
    }


async def test_of_a_completions_stream(server: ModelServer) -> None:
    first, second = await _events(server.complete(logprobs=0, max_tokens=2, stream=True))
    assert (first["tokens"], first["text_offset"]) == (["b"], [0])
    assert second == {
        "text_offset": [1],
        "token_logprobs": [-3.0],
        "tokens": ["c"],
        "top_logprobs": [{"c": -3.0}],
    }


def _entry(letter: str, logprob: float) -> dict[str, Any]:
    return {"token": letter, "logprob": logprob, "bytes": [ord(letter)]}


async def test_of_a_chat(server: ModelServer) -> None:
    response = await server.chat(logprobs=True, top_logprobs=2, max_tokens=2)
    (choice,) = response.json()["choices"]
    assert choice["logprobs"] == {
        "content": [
            {**_entry("b", -1.0), "top_logprobs": [_entry("b", -1.0), _entry("a", -0.5)]},
            {**_entry("c", -3.0), "top_logprobs": [_entry("c", -3.0), _entry("a", -0.5)]},
        ]
    }


async def test_of_a_chats_stream(server: ModelServer) -> None:
    role, first, second = await _events(server.chat(logprobs=True, max_tokens=2, stream=True))
    assert role is None
    assert first == {"content": [{**_entry("b", -1.0), "top_logprobs": []}]}
    assert second == {"content": [{**_entry("c", -3.0), "top_logprobs": []}]}


@pytest.mark.parametrize("body", [{}, {"logprobs": None}])
async def test_nobody_is_told_who_does_not_ask(server: ModelServer, body: dict[str, Any]) -> None:
    (choice,) = (await server.complete(**body)).json()["choices"]
    assert choice["logprobs"] is None
    (choice,) = (await server.chat(logprobs=False)).json()["choices"]
    assert choice["logprobs"] is None


async def test_tokens_can_be_named_by_their_ids(server: ModelServer) -> None:
    asked = {"logprobs": 0, "max_tokens": 2, "return_tokens_as_token_ids": True}
    (choice,) = (await server.complete(**asked)).json()["choices"]
    assert choice["logprobs"]["tokens"] == ["token_id:101", "token_id:102"]
    assert choice["logprobs"]["text_offset"] == [0, 12]


def test_what_cannot_be_is_a_number_that_json_has() -> None:
    never = Chosen(100, float("-inf"), 9, ((101, float("-inf")),))
    told = of_completion([never], chr, 1, 0)
    assert told["token_logprobs"] == [-9999.0]
    assert told["top_logprobs"] == [{"d": -9999.0, "e": -9999.0}]
    (entry,) = of_chat([never], chr, 0)["content"]
    assert entry["logprob"] == -9999.0
