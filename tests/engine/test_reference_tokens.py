"""The reference engine says what the real vLLM says: tokens, logprobs, hits and events.

Prompts are chosen such that no token of an answer is near a tie, so no difference is excused.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import pytest
import torch

from engine.reference_families import FAMILIES, write_family
from engine.reference_world import (
    BLOCK_TOKENS,
    HASH_SEED,
    NUM_BLOCKS,
    PROMPTS,
    TIE,
    Answer,
    ReferenceProcess,
    ask,
    ask_together,
    body,
    differences,
    events_since,
    serve_here,
)
from engine.world import REQUEST_S, token_ids
from real_engine.launch import Engine, Engines, EngineSpec, Role
from support.transport_world import until
from transload_engine.model.placements import LAYOUTS
from transload_router.core.kv_events.events import Stored

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

LOGPROB_TOLERANCE = 1e-4

SOME = range(0, 200, 8)
"""Numbers of 25 of the prompts, of all lengths."""

NUMBERS = [
    pytest.param(SOME, id="25"),
    pytest.param(range(200), id="200", marks=pytest.mark.engine_full),
]

PLACEMENTS = {
    "LBHNC": 32,
    "LBNHC": 16,
    "LHBNC": 8,
    "BLHNC": 128,
    "BLNHC": 1,
    "BHLNC": 48,
    "k-transposed": 64,
    "x-packed": 5,
    "separate": 24,
    "NHD": 256,
    "HND": 4,
}
"""Tokens of a block, by placement."""

HARDSHIPS = {
    "preempted": ("--num-gpu-blocks-override", "24", "--max-model-len", "512"),
    "cut": ("--max-num-batched-tokens", "48"),
    "few": ("--max-num-seqs", "3"),
    "uncached": ("--no-enable-prefix-caching",),
}
"""Options under which requests are computed in other steps than on their own."""


class Turn(NamedTuple):
    """One request of a conversation, and what an engine said to it."""

    prompt: list[int]
    token_ids: list[int]
    num_cached_tokens: int


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    """Two threads of torch that wait for each other on a busy machine wait long."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def theirs(engines: Engines) -> Iterator[Engine]:
    engine = vllm(engines, "beside-reference")
    yield engine
    engine.stop()


@pytest.fixture(scope="module")
def ours(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ReferenceProcess]:
    log = tmp_path_factory.mktemp("reference") / "log"
    with ReferenceProcess(engines.model, log) as process:
        yield process


@pytest.fixture(scope="module")
def expected(theirs: Engine) -> list[Answer]:
    """What vLLM answers to all prompts at once."""
    return ask_together(theirs.url, PROMPTS)


@pytest.fixture(scope="module")
def answers(ours: ReferenceProcess) -> list[Answer]:
    """What we answer to them."""
    return ask_together(ours.url, PROMPTS)


@pytest.fixture(scope="module")
def talks(theirs: Engine, ours: ReferenceProcess) -> dict[str, list[Turn]]:
    """The same conversations with both, twice."""
    return {url: [*converse(url), *converse(url)] for url in (theirs.url, ours.url)}


def vllm(engines: Engines, name: str, *options: str) -> Engine:
    """A real engine that hashes blocks as ours does."""
    arguments = ("--block-size", str(BLOCK_TOKENS), "--prefix-caching-hash-algo", "sha256_cbor")
    engine = engines.start(
        EngineSpec(
            name,
            Role.AGGREGATED,
            num_blocks=NUM_BLOCKS,
            has_events=True,
            extra_args=(*arguments, *options),
            env={"PYTHONHASHSEED": HASH_SEED},
        )
    )
    engine.wait_ready()
    return engine


def opening(talk: int) -> list[int]:
    """A conversation's first prompt: some are whole blocks, and some differ in their last alone."""
    shared = token_ids(2 * BLOCK_TOKENS, "opening")
    return [*shared, *token_ids((0, 1, 31, 32, 33, 70)[talk], f"opening {talk}")]


def converse(url: str) -> list[Turn]:
    """Six conversations of three turns, taking turns."""
    talks = [opening(talk) for talk in range(6)]
    turns = []
    for turn in range(3):
        for talk, prompt in enumerate(talks):
            said = ask(url, prompt, max_tokens=9, logprobs=None)
            tokens = said["choices"][0]["token_ids"]
            num_cached = said["usage"]["prompt_tokens_details"]["cached_tokens"]
            turns.append(Turn(prompt, tokens, num_cached))
            talks[talk] = [*prompt, *tokens, *token_ids(23 + talk, f"turn {turn} {talk}")]
    return turns


def alone(url: str, numbers: range, **changes: Any) -> list[Answer]:
    """One prompt after the other."""
    said = [ask(url, PROMPTS[number], **changes) for number in numbers]
    return [Answer.of(each["choices"][0]) for each in said]


def uncached(url: str, numbers: range) -> list[Answer]:
    """One prompt after the other, each computed whole: their salt is of no other test."""
    said = [ask(url, PROMPTS[number], cache_salt=f"alone {len(numbers)}") for number in numbers]
    assert not any(each["usage"]["prompt_tokens_details"]["cached_tokens"] for each in said)
    return [Answer.of(each["choices"][0]) for each in said]


def least_lead(told: list[Answer]) -> float:
    """Of any token in any answer."""
    return min(min(each.leads) for each in told)


async def at_once(client: httpx.AsyncClient, numbers: range) -> list[Answer]:
    """A request for each prompt, all at the same time."""
    asked = [client.post("/v1/completions", json=body(PROMPTS[number])) for number in numbers]
    said = await asyncio.gather(*asked)
    return [Answer.of(each.raise_for_status().json()["choices"][0]) for each in said]


def test_prompts_are_in_doubt_nowhere(expected: list[Answer], answers: list[Answer]) -> None:
    """No answer hangs on rounding, and none is another's: a difference is always an error."""
    assert least_lead(expected) > TIE
    assert least_lead(answers) > TIE
    assert len({tuple(each.token_ids) for each in expected}) == len(PROMPTS)


def test_together(expected: list[Answer], answers: list[Answer]) -> None:
    assert differences(answers, expected) == []


def test_logprobs(expected: list[Answer], answers: list[Answer]) -> None:
    for our, their in zip(answers, expected, strict=True):
        assert our.logprobs == pytest.approx(their.logprobs, rel=0, abs=LOGPROB_TOLERANCE)


@pytest.mark.parametrize("numbers", NUMBERS)
def test_alone(ours: ReferenceProcess, expected: list[Answer], numbers: range) -> None:
    told = uncached(ours.url, numbers)
    assert differences(told, (expected[number] for number in numbers), numbers) == []


@pytest.mark.engine_full
def test_vllm_alone_and_together(theirs: Engine, expected: list[Answer]) -> None:
    """What ours is held to does not itself depend on who is computed beside whom."""
    assert differences(uncached(theirs.url, range(200)), expected) == []


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("layout", PLACEMENTS)
async def test_placements(
    engines: Engines, expected: list[Answer], layout: str, numbers: range
) -> None:
    block_size = PLACEMENTS[layout]
    num_blocks = -(-NUM_BLOCKS * BLOCK_TOKENS // block_size)
    options = ("--kv-layout", layout, "--block-size", str(block_size))
    sizes = ("--num-gpu-blocks-override", str(num_blocks))
    async with serve_here(engines.model, *options, *sizes) as client:
        told = await at_once(client, numbers)
    assert differences(told, (expected[number] for number in numbers), numbers) == []


def test_every_placement_is_tried() -> None:
    assert PLACEMENTS.keys() == LAYOUTS.keys()


@pytest.mark.parametrize("numbers", NUMBERS)
@pytest.mark.parametrize("hardship", HARDSHIPS)
async def test_hardships(
    engines: Engines, expected: list[Answer], hardship: str, numbers: range
) -> None:
    async with serve_here(engines.model, *HARDSHIPS[hardship]) as client:
        told = await at_once(client, numbers)
        metrics = (await client.get("/metrics")).text
    assert differences(told, (expected[number] for number in numbers), numbers) == []
    lines = metrics.splitlines()
    (preemptions,) = (line for line in lines if line.startswith("vllm:num_preemptions_total"))
    assert (float(preemptions.split()[-1]) > 0) == (hardship == "preempted")


def test_conversations_hit_the_same(
    theirs: Engine, ours: ReferenceProcess, talks: dict[str, list[Turn]]
) -> None:
    real, told = talks[theirs.url], talks[ours.url]
    assert told == real
    first, again = told[: len(told) // 2], told[len(told) // 2 :]
    assert [turn.token_ids for turn in first] == [turn.token_ids for turn in again]
    for turn in again:
        assert turn.num_cached_tokens == (len(turn.prompt) - 1) // BLOCK_TOKENS * BLOCK_TOKENS


def test_conversations_publish_the_same(
    theirs: Engine, ours: ReferenceProcess, talks: dict[str, list[Turn]]
) -> None:
    """Names of blocks, their tokens, their order, and what a step says at once."""
    source = httpx.get(f"{theirs.url}/kv_event_sources", timeout=REQUEST_S).json()["0"]
    first_block = talks[ours.url][0].prompt[:BLOCK_TOKENS]
    num_blocks = len(_prefixes(talks[ours.url]))
    endpoints = source["replay_endpoint"], ours.replay_endpoint

    def has_all(endpoint: str) -> bool:
        return len(_names(events_since(endpoint, first_block))) >= num_blocks

    until(lambda: all(has_all(each) for each in endpoints), "every block is published")
    real, told = (events_since(each, first_block) for each in endpoints)
    assert told == real
    assert all(isinstance(event, Stored) for step in told for event in step)
    assert len(_names(told)) == num_blocks


def _names(steps: Iterable[Iterable[object]]) -> set[object]:
    """Of all blocks that are stored."""
    events = (event for step in steps for event in step)
    return {name for each in events if isinstance(each, Stored) for name in each.block_hashes}


def _prefixes(turns: list[Turn]) -> set[tuple[int, ...]]:
    """What ends with a full block. An answer's last token is in no cache: nothing came of it."""
    computed = [[*turn.prompt, *turn.token_ids[:-1]] for turn in turns]
    return {
        tuple(tokens[:end])
        for tokens in computed
        for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS)
    }


def test_seeded_draws_are_a_requests_own(ours: ReferenceProcess) -> None:
    """Whoever is beside it, and however often it is asked."""
    warm = {"temperature": 1.0, "top_p": 0.95, "seed": 17}
    numbers = range(0, 200, 40)
    others = {**warm, "seed": 18}
    together = [each.token_ids for each in ask_together(ours.url, PROMPTS[::8], **warm)]
    by_number = dict(zip(SOME, together, strict=True))
    own = [each.token_ids for each in alone(ours.url, numbers, **warm)]
    again = [each.token_ids for each in alone(ours.url, numbers, **warm)]
    assert own == again
    assert own == [by_number[number] for number in numbers]
    assert all(
        one != other.token_ids
        for one, other in zip(own, alone(ours.url, numbers, **others), strict=True)
    )


@pytest.mark.engine_full
@pytest.mark.parametrize("family", FAMILIES)
def test_families(engines: Engines, tmp_path: Path, family: str) -> None:
    """Together and alone, by what a family's attention, norms and rotations add."""
    model = write_family(family, tmp_path / family, engines.model)
    engine = vllm(engines, f"beside-{family}", "--model", str(model))
    try:
        expected = ask_together(engine.url, PROMPTS)
    finally:
        engine.stop()
    with ReferenceProcess(model, tmp_path / "log", "--kv-layout", "x-packed") as process:
        together = ask_together(process.url, PROMPTS)
        told = uncached(process.url, SOME)
    assert least_lead(expected) > TIE
    assert differences(together, expected) == []
    for our, their in zip(together, expected, strict=True):
        assert our.logprobs == pytest.approx(their.logprobs, rel=0, abs=LOGPROB_TOLERANCE)
    assert differences(told, (expected[number] for number in SOME), SOME) == []
