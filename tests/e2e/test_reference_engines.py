"""Two reference engines that agree in nothing but the model: the tokens of one alone."""

import asyncio
import contextlib
import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
import zmq.asyncio

from support.reference_engines import Asked, Handoff, serve_reference, settle, write_model
from support.reference_oracle import Oracle
from support.tiny_models import some_tokens
from support.waiting import soon

COUNT = 8
LENGTHS = (1, 15, 16, 33, 130)
Kind = tuple[str, int, str]
"""Layout, block size, dtype of the cache."""

DTYPES = {"auto": "f32", "bfloat16": "bf16", "float16": "f16", "fp8": "e4m3"}
TWINS: list[tuple[Kind, Kind]] = [
    (("k-transposed", 16, "auto"), ("separate", 8, "auto")),
    (("BLNHC", 12, "auto"), ("NHD", 8, "auto")),
    (("LHBNC", 16, "bfloat16"), ("x-packed", 64, "bfloat16")),
    (("BLHNC", 16, "fp8"), ("BHLNC", 32, "fp8")),
]
"""Convert in both directions."""

WIDENED: list[tuple[Kind, Kind]] = [
    (("x-packed", 8, "bfloat16"), ("BHLNC", 16, "auto")),
    (("LBHNC", 16, "float16"), ("k-transposed", 16, "auto")),
    (("LBNHC", 32, "fp8"), ("k-transposed", 4, "bfloat16")),
]
"""Convert without loss in one direction."""

LOSSY = ("--kv-allow-lossy",)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


def arguments(kind: Kind) -> tuple[str, ...]:
    layout, block_size, dtype = kind
    placed = ("--kv-layout", layout, "--block-size", str(block_size), "--kv-dtype", dtype)
    return (*placed, "--kv-transport", "tcp")


@contextlib.asynccontextmanager
async def pair(
    folder: Path, prefill: Kind, decode: Kind, *more: str
) -> AsyncIterator[tuple[Asked, Asked]]:
    """Two engines; nothing is held when the block ends well."""
    async with (
        serve_reference(folder, *arguments(prefill), *more) as p,
        serve_reference(folder, *arguments(decode), *more) as d,
    ):
        yield p, d
        await settle(p, d)


async def check(p: Asked, d: Asked, expected: Callable[[list[int]], list[int]]) -> None:
    """Prompts that p reads and d answers; each whole prompt is loaded."""
    before = await d.metrics()
    for length in LENGTHS:
        prompt = some_tokens(length, length)
        handoff = await p.prefill(prompt)
        assert await d.tokens(prompt, kv_transfer_params=handoff) == expected(prompt)
    after = await d.metrics()
    total = sum(LENGTHS)
    assert after.since(before, "transload_kv_loaded_tokens_total") == total
    assert after.since(before, "vllm:external_prefix_cache_hits_total") == total
    assert await d.failures() == {}


@pytest.mark.parametrize("kinds", TWINS, ids=str)
async def test_placements_and_block_sizes_may_differ(
    folder: Path, oracle: Oracle, kinds: tuple[Kind, Kind]
) -> None:
    dtype = DTYPES[kinds[0][2]]
    # Of prefixes that are here nothing would be fetched.
    async with pair(folder, *kinds, "--no-enable-prefix-caching") as (p, d):
        await check(p, d, lambda prompt: oracle.alone(prompt, COUNT, dtype))
        await check(d, p, lambda prompt: oracle.alone(prompt, COUNT, dtype))


@pytest.mark.parametrize("kinds", WIDENED, ids=str)
async def test_numbers_may_become_wider(
    folder: Path, oracle: Oracle, kinds: tuple[Kind, Kind]
) -> None:
    src, dst = (DTYPES[kind[2]] for kind in kinds)
    async with pair(folder, *kinds) as (p, d):
        await check(p, d, lambda prompt: oracle.moved(prompt, COUNT, src, dst))


@pytest.mark.parametrize("kinds", WIDENED, ids=str)
async def test_losses_have_to_be_allowed(
    folder: Path, oracle: Oracle, kinds: tuple[Kind, Kind]
) -> None:
    dst, src = (DTYPES[kind[2]] for kind in kinds)
    async with pair(folder, kinds[1], kinds[0], *LOSSY) as (p, d):
        await check(p, d, lambda prompt: oracle.moved(prompt, COUNT, src, dst))
    prompt = some_tokens(33)
    async with pair(folder, kinds[1], kinds[0]) as (p, d):
        got = await d.tokens(prompt, kv_transfer_params=await p.prefill(prompt))
        assert got == oracle.alone(prompt, COUNT, dst)
        (((reason, path), count),) = (await d.failures()).items()
        assert (reason, count) == ("refused", 1)
        assert path.startswith("groups[].")
        assert await d.num_loaded_tokens() == 0


async def test_what_is_loaded_is_what_is_computed_with(folder: Path, oracle: Oracle) -> None:
    prompt = some_tokens(60)
    async with pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d):
        handoff = await p.prefill(prompt)
        assert p.memory is not None
        for pool in p.memory.pools.values():
            pool.zero_()
        assert await d.tokens(prompt, kv_transfer_params=handoff) != oracle.alone(prompt, COUNT)


async def test_a_prefix_that_is_here_is_not_fetched_again(folder: Path, oracle: Oracle) -> None:
    shared, prompt = some_tokens(64), [*some_tokens(64), *some_tokens(20, 6)]
    async with pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d):
        await d.tokens(shared)
        handoff = await p.prefill(prompt)
        got = await d.tokens(prompt, kv_transfer_params=handoff)
        assert got == oracle.alone(prompt, COUNT)
        assert await d.num_loaded_tokens() == 20
        # Two of the other engine's blocks of 16 tokens, 512 bytes each.
        moved = (await d.metrics()).value("transload_kv_loaded_bytes_total")
        assert moved == 2 * 16 * 512
        # Blocks that were loaded are as good as computed ones.
        assert await d.tokens([*prompt, 7]) == oracle.alone([*prompt, 7], COUNT)
        assert (await d.metrics()).value("vllm:prefix_cache_hits_total") >= 64 + 80


async def test_loaded_blocks_are_announced(folder: Path) -> None:
    prompt = some_tokens(40)
    async with pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d):
        source = (await d.client.get("/kv_event_sources")).json()["0"]
        await d.tokens(prompt, max_tokens=1, kv_transfer_params=await p.prefill(prompt))
        with zmq.asyncio.Context() as context, context.socket(zmq.DEALER) as reader:
            reader.connect(source["replay_endpoint"])
            await reader.send_multipart([b"", bytes(8)])
            _, _, _, payload = await soon(reader.recv_multipart())
    _, events, _ = msgspec.msgpack.decode(payload)
    assert [token for event in events for token in event["token_ids"]] == prompt
    assert {event["type"] for event in events} == {"BlockStored"}


async def test_many_at_once_through_small_caches(folder: Path, oracle: Oracle) -> None:
    shared = some_tokens(30)
    prompts = [
        [*shared[: number % 3 * 15], *some_tokens(20 + number, number)] for number in range(24)
    ]
    small = ("--num-gpu-blocks-override", "70", "--max-model-len", "256", "--max-num-seqs", "6")

    async def answer(p: Asked, d: Asked, prompt: list[int]) -> list[int]:
        return await d.tokens(prompt, kv_transfer_params=await p.prefill(prompt))

    async with pair(folder, ("k-transposed", 8, "auto"), ("separate", 16, "auto"), *small) as (
        p,
        d,
    ):
        got = await asyncio.gather(*(answer(p, d, prompt) for prompt in prompts))
        assert got == [oracle.alone(prompt, COUNT) for prompt in prompts]
        assert await d.failures() == {}
        assert (await d.metrics()).value("transload_kv_loads_total") == 24
        assert (await p.metrics()).value("transload_kv_handoffs_ended_total", end="ended") == 24


async def test_choices_of_one_answer_share_a_handoff(folder: Path) -> None:
    prompt = some_tokens(50)
    async with pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d):
        sampled: dict[str, Any] = {"n": 3, "temperature": 1.0, "seed": 5}
        alone = (await d.complete(prompt, cache_salt="apart", **sampled)).json()["choices"]
        handoff = await p.prefill(prompt)
        split = await d.complete(prompt, kv_transfer_params=handoff, **sampled)
        choices = split.json()["choices"]
        assert [each["token_ids"] for each in choices] == [each["token_ids"] for each in alone]
        assert await d.failures() == {}
        await settle(p, d)
        assert (await p.metrics()).value("transload_kv_handoffs_ended_total", end="ended") == 1


async def test_several_engines_may_read_one_handoff(folder: Path, oracle: Oracle) -> None:
    prompt = some_tokens(50)
    async with (
        pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d),
        serve_reference(folder) as third,
    ):
        handoff = await p.prefill(prompt, transload_readers=2)
        for engine in (d, third):
            got = await engine.tokens(prompt, kv_transfer_params=handoff)
            assert got == oracle.alone(prompt, COUNT)
            assert await engine.num_loaded_tokens() == 50
        # As many as it is for have come.
        await d.tokens(prompt[::-1], kv_transfer_params=handoff)
        assert await d.failures() == {("expired", ""): 1}


async def test_who_cannot_read_leaves_a_handoff_to_others(folder: Path, oracle: Oracle) -> None:
    prompt = some_tokens(50)
    async with (
        pair(folder, TWINS[0][0], TWINS[0][1]) as (p, d),
        serve_reference(folder, "--kv-dtype", "bfloat16") as narrow,
    ):
        handoff = await p.prefill(prompt, transload_readers=2)
        await narrow.tokens(prompt, kv_transfer_params=handoff)
        assert sum((await narrow.failures()).values()) == 1
        for _ in range(2):
            got = await d.tokens(prompt, kv_transfer_params=handoff, cache_salt="apart")
            assert got == oracle.alone(prompt, COUNT)
        assert await d.failures() == {}


# What differs in more than its place.


def with_other_rope(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    config["rope_parameters"]["rope_theta"] = 20000.0
    (folder / "config.json").write_text(json.dumps(config))


@pytest.mark.parametrize(
    ("family", "changed", "path", "said"),
    [
        ("llama-biases", None, "model.weights", "model.weights"),
        ("llama", with_other_rope, "model.rope.params", "model.rope.params.rope_theta"),
    ],
)
async def test_another_model_is_refused_before_a_block_moves(
    folder: Path,
    oracle: Oracle,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    family: str,
    changed: Callable[[Path], None] | None,
    path: str,
    said: str,
) -> None:
    other = tmp_path / "other"
    if changed is None:
        write_model(other, family)
    else:
        shutil.copytree(folder, other)
        changed(other)
    prompt = some_tokens(40)
    async with serve_reference(other) as p, serve_reference(folder) as d:
        handoff = await p.prefill(prompt)
        got = await d.tokens(prompt, kv_transfer_params=handoff)
        assert got == oracle.alone(prompt, COUNT)
        assert await d.failures() == {("refused", path): 1}
        assert said in caplog.text
        assert f"{handoff['remote_host']}:{handoff['remote_port']}" in caplog.text
        await settle(p, d)
        assert (await p.metrics()).value("transload_kv_handoffs_ended_total", end="forgone") == 1
        assert await d.num_loaded_tokens() == 0


async def test_another_token_is_refused(folder: Path, oracle: Oracle) -> None:
    prompt = some_tokens(40)
    async with (
        serve_reference(folder, "--kv-token", "ours") as p,
        serve_reference(folder, "--kv-token", "theirs") as d,
    ):
        got = await d.tokens(prompt, kv_transfer_params=await p.prefill(prompt))
        assert got == oracle.alone(prompt, COUNT)
        assert await d.failures() == {("refused", ""): 1}


def of_nixl(handoff: Handoff) -> Handoff:
    return {name: value for name, value in handoff.items() if name != "transload"}


def of_a_longer_prompt(handoff: Handoff) -> Handoff:
    return handoff


@pytest.mark.parametrize(
    ("spoil", "length", "reason"), [(of_nixl, 40, "foreign"), (of_a_longer_prompt, 39, "prompt")]
)
async def test_what_cannot_be_read_is_computed_or_fails(
    folder: Path,
    oracle: Oracle,
    spoil: Callable[[Handoff], Handoff],
    length: int,
    reason: str,
) -> None:
    prompt = some_tokens(40)
    async with (
        serve_reference(folder) as p,
        serve_reference(folder) as d,
        serve_reference(folder, "--kv-load-failure-policy", "fail") as strict,
    ):
        for engine in (d, strict):
            handoff = spoil(await p.prefill(prompt))
            answer = await engine.complete(prompt[:length], kv_transfer_params=handoff)
            if engine is d:
                tokens = answer.json()["choices"][0]["token_ids"]
                assert tokens == oracle.alone(prompt[:length], COUNT)
            else:
                assert answer.status_code == 500
            assert await engine.failures() == {(reason, ""): 1}
            await settle(engine)
