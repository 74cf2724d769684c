"""A model's engine as it is served: answers, steps in a thread, ends of all kinds."""

import asyncio
import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import httpx
import msgspec
import openai
import pytest
import zmq
import zmq.asyncio

from support.model_server import PROMPT, ModelServer, serve_model
from support.recording_runner import answer
from support.waiting import soon, until
from transload_engine.core.hashes import CborHash, HashAlgorithm
from transload_engine.core.runner import Chosen, Chunk
from transload_engine.server.sampling import ModelDefaults
from transload_engine.server.tokens import NO_VALUES, ByteTokenizer, Message

BYTES = ByteTokenizer()


@pytest.fixture
async def server() -> AsyncIterator[ModelServer]:
    async with serve_model() as server:
        yield server


def events(response: httpx.Response) -> list[dict[str, Any]]:
    assert response.status_code == 200, response.text
    *lines, done = [line for line in response.text.split("\n\n") if line]
    assert done == "data: [DONE]"
    return [json.loads(line.removeprefix("data: ")) for line in lines]


async def test_tokens_are_those_that_the_runner_chose(server: ModelServer) -> None:
    whole = (await server.complete(return_token_ids=True)).json()
    (choice,) = whole["choices"]
    assert choice["token_ids"] == answer(PROMPT, 4)
    assert choice["prompt_token_ids"] == PROMPT
    assert choice["text"] == BYTES.decode(answer(PROMPT, 4))
    assert choice["finish_reason"] == "length"
    streamed = events(await server.complete(return_token_ids=True, stream=True))
    assert [token for each in streamed for token in each["choices"][0]["token_ids"]] == answer(
        PROMPT, 4
    )


async def test_an_openai_client_is_served(server: ModelServer) -> None:
    url = f"{server.engine.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        chat = await client.chat.completions.create(
            model="tiny",
            messages=[{"role": "user", "content": "cargo"}],
            max_completion_tokens=5,
            temperature=0,
        )
        (model,) = [each async for each in client.models.list()]
    prompt = BYTES.encode_chat(
        [{"role": "user", "content": "cargo"}], None, add_generation_prompt=True
    )
    assert chat.choices[0].message.content == BYTES.decode(answer(prompt, 5))
    assert (model.id, model.owned_by) == ("tiny", "transload")


async def test_a_body_that_says_nothing_has_the_models_defaults() -> None:
    defaults = ModelDefaults(frozenset({7}), {"temperature": 0.25, "top_k": 5}, max_tokens=3)
    async with serve_model(defaults=defaults) as server:
        chat = await server.chat(max_tokens=None, temperature=None, top_p=0.5)
        assert chat.json()["usage"]["completion_tokens"] == 3
        ((chunk,), *_) = server.runner.steps
        assert chunk.sampling is not None
        assert (chunk.sampling.temperature, chunk.sampling.top_k) == (0.25, 5)
        assert chunk.sampling.top_p == 0.5
        assert chunk.sampling.stop_ids == {BYTES.eos, 7}


async def test_a_chat_without_a_length_goes_to_the_end(server: ModelServer) -> None:
    usage = (await server.chat(max_tokens=None)).json()["usage"]
    assert usage["total_tokens"] == 200


@pytest.mark.parametrize(("token", "reason"), [(BYTES.eos, None), (7, 7)])
async def test_any_of_the_models_end_tokens_ends_an_answer(token: int, reason: int | None) -> None:
    async with serve_model(defaults=ModelDefaults(frozenset({7, BYTES.eos}))) as server:
        server.runner.chooses = lambda chunk: Chosen(token if chunk.num_drawn == 2 else 110)
        (choice,) = (await server.complete()).json()["choices"]
        assert (choice["finish_reason"], choice["stop_reason"]) == ("stop", reason)
        assert choice["text"] == "kk"
        (choice,) = (await server.complete(ignore_eos=True)).json()["choices"]
        assert choice["finish_reason"] == "length"


async def test_a_stop_token_is_no_text_unless_asked_for(server: ModelServer) -> None:
    server.runner.chooses = lambda chunk: Chosen(110 + chunk.num_drawn)
    (choice,) = (await server.complete(stop_token_ids=[112])).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("kl", 112)
    kept = await server.complete(stop_token_ids=[112], include_stop_str_in_output=True)
    assert kept.json()["choices"][0]["text"] == "klm"


async def test_stop_strings_count_behind_the_least_length(server: ModelServer) -> None:
    server.runner.chooses = lambda chunk: Chosen(110 + chunk.num_drawn % 2)
    (choice,) = (await server.complete(stop=["kl"], max_tokens=9)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("", "kl")
    (choice,) = (await server.complete(stop=["kl"], max_tokens=9, min_tokens=3)).json()["choices"]
    assert (choice["text"], choice["stop_reason"]) == ("kl", "kl")


async def test_choices_are_drawn_from_seeds_of_their_own(server: ModelServer) -> None:
    await server.complete(prompt=[PROMPT, PROMPT[:5]], n=2, seed=40, temperature=1, max_tokens=1)
    chunks = [chunk for step in server.runner.steps for chunk in step]
    seeds = [(chunk.num_prompt, chunk.sampling and chunk.sampling.seed) for chunk in chunks]
    assert seeds == [(9, 40), (9, 41), (5, 40), (5, 41)]
    assert len({chunk.request_id for chunk in chunks}) == 4


async def test_choices_share_the_blocks_of_their_prompt(server: ModelServer) -> None:
    response = await server.complete(n=3, temperature=1)
    assert len(response.json()["choices"]) == 3
    firsts = [chunk.first for chunk in server.runner.steps[0]]
    assert firsts == [0, 8, 8]


async def test_the_loop_goes_on_while_a_step_is_computed(server: ModelServer) -> None:
    server.runner.gate.clear()
    asked = asyncio.create_task(server.complete())
    await until(server.runner.entered.is_set, "the step has begun")
    metrics = (await server.client.get("/metrics")).text
    assert 'vllm:num_requests_running{engine="0",model_name="tiny"} 1.0' in metrics
    assert not asked.done()
    server.runner.gate.set()
    assert (await soon(asked)).status_code == 200


async def test_who_leaves_in_a_step_has_its_blocks_freed_behind_it(server: ModelServer) -> None:
    server.runner.gate.clear()
    core = server.engine.cores[0]
    asked = asyncio.create_task(server.complete())
    await until(server.runner.entered.is_set, "the step has begun")
    asked.cancel()
    await until(lambda: core.num_running == 0, "the request is aborted")
    assert core.usage > 0
    server.runner.gate.set()
    await until(lambda: core.usage == 0, "the blocks are free")
    assert len(server.runner.steps) == 1


def _broken(chunk: Chunk) -> Chosen:
    raise RuntimeError("the model broke")


async def _break_the_model(answers: list[httpx.Response]) -> None:
    async with serve_model() as server:
        server.runner.gate.clear()
        first = asyncio.create_task(server.complete())
        await until(server.runner.entered.is_set, "the step has begun")
        second = asyncio.create_task(server.complete(stream=True))
        await until(lambda: server.engine.cores[0].num_waiting == 1, "another waits")
        server.runner.chooses = _broken
        server.runner.gate.set()
        answers += [await soon(first), await soon(second), await server.complete()]


async def test_a_runner_that_fails_ends_all_requests_and_refuses_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers: list[httpx.Response] = []
    with pytest.raises(RuntimeError, match="the model broke"):
        await _break_the_model(answers)
    whole, streamed, late = answers
    assert (whole.status_code, late.status_code) == (500, 503)
    assert '"code":500' in streamed.text
    (told,) = [record for record in caplog.records if record.name.startswith("transload_engine")]
    assert told.exc_info is not None
    assert str(told.exc_info[1]) == "the model broke"


class _SeeingTokenizer(ByteTokenizer):
    """Keeps what templates would see."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[object, dict[str, Any]]] = []

    def encode_chat(
        self,
        messages: list[Message],
        tools: list[Any] | None,
        *,
        add_generation_prompt: bool,
        values: Mapping[str, Any] = NO_VALUES,
    ) -> list[int]:
        self.seen.append((tools, dict(values)))
        return [5]


async def test_a_chats_template_sees_tools_and_what_else_is_given() -> None:
    tokenizer = _SeeingTokenizer()
    async with serve_model(tokenizer=tokenizer) as server:
        await server.chat(tools=[{"type": "function"}], tool_choice="auto")
        await server.chat(chat_template_kwargs={"a": 1}, reasoning_effort="low", documents=[])
        await server.client.post(
            "/tokenize", json={"messages": [], "chat_template_kwargs": {"a": 2}}
        )
        refused = await server.chat(chat_template_kwargs=[1])
    values = {"a": 1, "reasoning_effort": "low", "enable_thinking": True, "documents": []}
    assert tokenizer.seen == [([{"type": "function"}], {}), (None, values), (None, {"a": 2})]
    assert refused.status_code == 400


async def test_prompts_are_of_the_models_vocabulary() -> None:
    async with serve_model(vocab_size=280) as server:
        assert (await server.complete(prompt=[279])).status_code == 200
        refused = await server.complete(prompt=[280])
        assert refused.json()["error"]["message"] == "Token id 280 is out of vocabulary"


async def test_nothing_is_simulated(server: ModelServer) -> None:
    assert (await server.client.post("/simulate/fault", json={})).status_code == 404
    whole = (await server.complete()).json()
    assert whole["system_fingerprint"].startswith("transload-")
    assert (await server.client.get("/version")).json()["version"] in whole["system_fingerprint"]


async def test_blocks_are_announced_by_vllms_names() -> None:
    async with serve_model(hash_algorithm=HashAlgorithm.SHA256_CBOR, has_int_names=False) as server:
        await server.complete()
        source = (await server.client.get("/kv_event_sources")).json()["0"]
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as reader:
            reader.connect(source["replay_endpoint"])
            await reader.send_multipart([b"", bytes(8)])
            _, _, _, payload = await soon(reader.recv_multipart())
    _, (stored,), rank = msgspec.msgpack.decode(payload)
    recipe = CborHash()
    first = recipe.of(recipe.root, PROMPT[:4], None)
    assert stored["block_hashes"] == [first, recipe.of(first, PROMPT[4:8], None)]
    assert (stored["token_ids"], rank) == (PROMPT[:8], 0)
