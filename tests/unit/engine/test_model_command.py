"""A model's engine from its command line to an OpenAI client's tokens."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import openai
import pytest

from support.reference_engines import write_model
from support.tiny_models import generate, some_tokens
from support.waiting import soon
from transload_engine.__main__ import main
from transload_engine.server import model_command
from transload_engine.server.model_command import LoadedModel, load, model_parser, running
from transload_engine.server.model_engine import ModelEngine

# Python with torch took 2-6 s to start on 2 shared cores.
START_S = 50.0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


def loaded(folder: Path, *arguments: str) -> LoadedModel:
    return load(model_parser().parse_args(["--model", str(folder), "--port", "0", *arguments]))


def expected(folder: Path, prompt: list[int], count: int) -> list[int]:
    """The likeliest tokens, from a runner of its own that is called directly."""
    blocks = range(1, 1 + -(-(len(prompt) + count) // 16))
    return generate(loaded(folder).runner, prompt, count, blocks)


@pytest.fixture
async def engine(folder: Path) -> AsyncIterator[ModelEngine]:
    arguments = ("--served-model-name", "tiny", "--max-num-batched-tokens", "24")
    async with running(loaded(folder, *arguments, "--kv-layout", "x-packed")) as (engine,):
        yield engine


@pytest.fixture
async def client(engine: ModelEngine) -> AsyncIterator[openai.AsyncOpenAI]:
    url = f"{engine.url}/v1"
    async with openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


async def test_many_at_once_get_the_tokens_that_the_model_gives_each(
    folder: Path, client: openai.AsyncOpenAI
) -> None:
    shared = some_tokens(40)
    prompts = [shared[:end] for end in (5, 16, 33, 40)]

    async def complete(prompt: list[int]) -> list[int]:
        answer = await client.completions.create(
            model="tiny",
            prompt=prompt,
            max_tokens=12,
            temperature=0,
            extra_body={"return_token_ids": True, "ignore_eos": True},
        )
        return list(answer.choices[0].model_dump()["token_ids"])

    for _ in range(2):
        answers = await asyncio.gather(*map(complete, prompts))
        assert answers == [expected(folder, prompt, 12) for prompt in prompts]


async def test_a_conversation_is_streamed(folder: Path, client: openai.AsyncOpenAI) -> None:
    stream = await client.chat.completions.create(
        model="tiny",
        messages=[{"role": "user", "content": "w9 w17 w30"}],
        max_completion_tokens=6,
        temperature=0,
        logprobs=True,
        stream=True,
        extra_body={"ignore_eos": True},
    )
    choices = [chunk.choices[0] async for chunk in stream]
    tokens = expected(folder, [9, 17, 30, 5], 6)
    text = "".join(choice.delta.content or "" for choice in choices)
    assert text == " ".join(f"w{token}" for token in tokens)
    told = [entry for each in choices if each.logprobs for entry in each.logprobs.content or ()]
    assert [entry.token for entry in told] == [f"w{token}" for token in tokens]
    assert all(-20 < entry.logprob < 0 for entry in told)


async def test_a_seed_gives_the_same_draws_again(client: openai.AsyncOpenAI) -> None:
    async def draw(seed: int, count: int = 1) -> list[str]:
        answer = await client.completions.create(
            model="tiny", prompt=some_tokens(9), max_tokens=8, seed=seed, n=count, temperature=1.5
        )
        return [choice.text for choice in answer.choices]

    first, second = await draw(3, 2)
    assert first != second
    assert await draw(3) == [first]
    assert await draw(4) == [second]


def test_options_reach_the_engine(folder: Path) -> None:
    found = loaded(
        folder,
        *("--block-size", "8", "--max-model-len", "64", "--kv-dtype", "bfloat16"),
        *("--max-num-seqs", "3", "--no-enable-prefix-caching", "--event-hashes", "bytes"),
    ).spec.core
    assert (found.block_size, found.max_model_tokens, found.num_blocks) == (8, 64, 33)
    assert (found.max_requests, found.max_batch_tokens) == (3, 2048)
    assert (found.caches_prefixes, found.has_int_names) == (False, False)
    assert (found.hash_algorithm, found.has_connector) == ("sha256_cbor", True)
    whole = loaded(folder)
    assert whole.spec.model == str(folder)
    assert whole.spec.core.max_model_tokens == 512
    assert whole.defaults.eos_ids == {2}


def test_a_cache_of_no_given_size_has_its_bounds(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 16 tokens of 2 layers, 2 heads of 16 elements, K and V, in 4 bytes.
    monkeypatch.setattr(model_command, "CACHE_BYTES", 40 * 16 * 2 * 2 * 16 * 2 * 4)
    assert loaded(folder).spec.core.num_blocks == 40


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--kv-layout", "upside-down"), "layout 'upside-down' is none of"),
        (("--num-gpu-blocks-override", "3"), "3 blocks of 16 hold 32 tokens, fewer than one"),
        (("--max-model-len", "513"), "the model was made for 512 positions"),
        (("--events-port", "70000"), "got 70000"),
    ],
)
def test_what_cannot_run_is_refused(folder: Path, arguments: tuple[str, ...], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        loaded(folder, *arguments)


def test_a_folder_that_is_none_is_told_without_a_trace(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setattr(sys, "argv", ["transload_engine", "--model", str(tmp_path)])
    with pytest.raises(SystemExit, match="2"):
        main()
    assert capsys.readouterr().err.endswith(f"'{tmp_path}/tokenizer.json'\n")


async def test_a_process_serves_and_ends_when_told(folder: Path) -> None:
    command = ["-m", "transload_engine", "--model", str(folder), "--port", "0"]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *command, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        told = json.loads(await soon(process.stdout.readline(), START_S))
        async with openai.AsyncOpenAI(base_url=f"{told['url']}/v1", api_key="none") as client:
            answer = await client.completions.create(
                model=told["model"], prompt=[3, 4, 5], max_tokens=2, temperature=0
            )
        assert answer.usage is not None
        assert answer.usage.total_tokens <= 5
        process.terminate()
        assert await soon(process.wait(), START_S) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
