"""Loads that go wrong on the way: right tokens, a reason to count, and no block kept."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from support.reference_engines import Asked, Handoff, serve_reference, settle, write_model
from support.reference_oracle import Oracle
from support.reference_proxy import Proxy, proxy
from support.tiny_models import some_tokens
from support.waiting import soon, until
from transload_abi.wire.deadlines import ReaderDeadlines
from transload_engine.core.runner import Chosen, Chunk, Runner

COUNT = 8
PROMPT = some_tokens(300)
LEASE_S = 0.5
"""Of blocks whose reader is lost: the longest that they are kept."""

TCP = ("--kv-transport", "tcp")
"""What goes wrong here are bytes on their way; in shared memory they have none."""

PREFILL = (*TCP, "--kv-layout", "k-transposed", "--kv-lease-duration", str(LEASE_S))
DECODE = (*TCP, "--kv-layout", "separate", "--block-size", "8", "--no-enable-prefix-caching")
QUICK = ReaderDeadlines(opening_s=0.5, answer_s=0.5, stall_s=0.5, read_s=5.0)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


class Pair:
    """Two engines, and a proxy between them that one load has passed."""

    def __init__(self, prefill: Asked, decode: Asked, between: Proxy) -> None:
        self.prefill = prefill
        self.decode = decode
        self.between = between
        self.num_bytes = 0
        """Of one load of `PROMPT`, what stands around its data included."""

    async def hand_off(self) -> Handoff:
        """Of the prompt, through the proxy."""
        return {**await self.prefill.prefill(PROMPT), "remote_port": self.between.port}

    async def warm(self) -> None:
        """One load, in a session that the next will use."""
        handoff = await self.hand_off()
        await self.decode.tokens(PROMPT, kv_transfer_params=handoff)
        await settle(self.prefill)
        before = self.between.num_bytes
        await self.decode.tokens(PROMPT, kv_transfer_params=await self.hand_off())
        await settle(self.prefill)
        self.num_bytes = self.between.num_bytes - before
        assert self.num_bytes > 512 * len(PROMPT), "the prompt's blocks do not come this way"

    async def begin(self) -> asyncio.Task[list[int]]:
        """Ask for the prompt's answer."""
        handoff = await self.hand_off()
        return asyncio.create_task(self.decode.tokens(PROMPT, kv_transfer_params=handoff))


@contextlib.asynccontextmanager
async def pair(
    folder: Path, *decode: str, deadlines: ReaderDeadlines = QUICK
) -> AsyncIterator[Pair]:
    async with (
        serve_reference(folder, *PREFILL) as p,
        serve_reference(folder, *DECODE, *decode, deadlines=deadlines) as d,
    ):
        where = await p.prefill([7])
        async with proxy(where["remote_host"], where["remote_port"]) as between:
            made = Pair(p, d, between)
            await made.warm()
            yield made
            await settle(p, d)


@pytest.mark.parametrize("share", [0.3, 0.9])
async def test_a_spoiled_byte_is_noticed(folder: Path, oracle: Oracle, share: float) -> None:
    async with pair(folder) as it:
        it.between.spoil_after(int(it.num_bytes * share))
        got = await soon(await it.begin())
        assert got == oracle.alone(PROMPT, COUNT)
        assert await it.decode.failures() == {("corrupt", ""): 1}


@pytest.mark.parametrize("share", [0.01, 0.5])
async def test_a_connection_that_is_cut(folder: Path, oracle: Oracle, share: float) -> None:
    async with pair(folder) as it:
        it.between.hold_after(int(it.num_bytes * share))
        asked = await it.begin()
        await soon(it.between.is_holding.wait())
        it.between.cut()
        assert await soon(asked) == oracle.alone(PROMPT, COUNT)
        assert await it.decode.failures() == {("unreachable", ""): 1}


async def test_a_load_that_stands_still(folder: Path, oracle: Oracle) -> None:
    async with pair(folder) as it:
        it.between.hold_after(it.num_bytes // 2)
        asked = await it.begin()
        assert await soon(asked) == oracle.alone(PROMPT, COUNT)
        assert await it.decode.failures() == {("timeout", ""): 1}


async def test_a_failed_load_fails_its_request_where_that_is_wanted(folder: Path) -> None:
    async with pair(folder, "--kv-load-failure-policy", "fail") as it:
        it.between.spoil_after(it.num_bytes // 2)
        handoff = await it.hand_off()
        answer = await soon(it.decode.complete(PROMPT, kv_transfer_params=handoff))
        assert answer.status_code == 500
        assert answer.json()["error"]["message"] == "Internal server error"
        assert await it.decode.failures() == {("corrupt", ""): 1}
        assert await soon(await it.begin()) != []


async def test_a_client_that_leaves_while_its_prompt_is_loaded(folder: Path) -> None:
    patient = ReaderDeadlines(answer_s=0.5)
    async with pair(folder, deadlines=patient) as it:
        it.between.hold_after(it.num_bytes // 2)
        asked = await it.begin()
        await soon(it.between.is_holding.wait())
        assert await it.decode.usage() > 0
        asked.cancel()
        # Nobody waits for bytes that may still come.
        await settle(it.prefill, it.decode)
        assert await it.decode.failures() == {}


async def test_blocks_that_have_become_anothers_are_never_read(
    folder: Path, oracle: Oracle
) -> None:
    small = ("--num-gpu-blocks-override", "33", "--max-model-len", "512")
    async with (
        serve_reference(folder, *PREFILL, *small, "--kv-lease-duration", "0.2") as p,
        serve_reference(folder, *DECODE) as d,
    ):
        handoff = await p.prefill(PROMPT)
        await settle(p)
        assert (await p.metrics()).value("transload_kv_handoffs_ended_total", end="expired") == 1
        other = await p.prefill(PROMPT[::-1])
        taken = set(handoff["remote_block_ids"][0]) & set(other["remote_block_ids"][0])
        assert taken
        got = await d.tokens(PROMPT, kv_transfer_params=handoff)
        assert got == oracle.alone(PROMPT, COUNT)
        assert await d.failures() == {("expired", ""): 1}
        await settle(p, d)


async def test_the_blocks_of_another_prompt_of_that_length_are_not_read(
    folder: Path, oracle: Oracle
) -> None:
    other = [*PROMPT[:-2], *PROMPT[:-3:-1]]
    assert len(other) == len(PROMPT)
    assert other != PROMPT
    async with pair(folder) as it:
        handoff = await it.hand_off()
        got = await it.decode.tokens(other, kv_transfer_params=handoff)
        assert got == oracle.alone(other, COUNT)
        assert await it.decode.failures() == {("prompt", ""): 1}


async def test_a_handoff_of_an_engine_that_was_started_anew(folder: Path, oracle: Oracle) -> None:
    async with serve_reference(folder, *DECODE) as d:
        async with serve_reference(folder, *PREFILL) as p:
            handoff = await p.prefill(PROMPT)
        port = ("--side-channel-port", str(handoff["remote_port"]))
        async with serve_reference(folder, *PREFILL, *port):
            got = await d.tokens(PROMPT, kv_transfer_params=handoff)
            assert got == oracle.alone(PROMPT, COUNT)
            assert await d.failures() == {("refused", ""): 1}


class Gated:
    """A runner whose steps wait."""

    def __init__(self, runner: Runner) -> None:
        self.gate = threading.Event()
        self.gate.set()
        self._runner = runner

    def run(self, chunks: Sequence[Chunk]) -> list[Chosen | None]:
        assert self.gate.wait(10), "the gate stayed shut"
        return self._runner.run(chunks)


async def test_a_lease_is_renewed_while_its_request_waits(folder: Path, oracle: Oracle) -> None:
    gates: list[Gated] = []

    def gated(runner: Runner) -> Gated:
        gates.append(Gated(runner))
        return gates[-1]

    lease_s = 0.3
    async with (
        serve_reference(folder, *PREFILL, "--kv-lease-duration", str(lease_s)) as p,
        serve_reference(folder, *DECODE, "--max-num-seqs", "1", wrap=gated) as d,
    ):
        gates[0].gate.clear()
        first = asyncio.create_task(d.tokens([5, 6, 7]))
        handoff = await p.prefill(PROMPT)
        second = asyncio.create_task(d.tokens(PROMPT, kv_transfer_params=handoff))
        loop = asyncio.get_running_loop()
        until_s = loop.time() + 3 * lease_s
        await until(lambda: loop.time() > until_s, "three leases have passed")
        gates[0].gate.set()
        assert await soon(first) == oracle.alone([5, 6, 7], COUNT)
        assert await soon(second) == oracle.alone(PROMPT, COUNT)
        assert await d.num_loaded_tokens() == len(PROMPT)
        await settle(p, d)


async def test_many_loads_of_which_some_go_wrong(folder: Path, oracle: Oracle) -> None:
    prompts = [some_tokens(40 + number, number) for number in range(12)]

    async def answer(it: Pair, number: int) -> list[int]:
        handoff = await it.prefill.prefill(prompts[number])
        if number % 2:
            handoff["remote_port"] = it.between.port
        return await it.decode.tokens(prompts[number], kv_transfer_params=handoff)

    async with pair(folder) as it:
        it.between.spoil_after(it.num_bytes // 4)
        got = await asyncio.gather(*(answer(it, number) for number in range(12)))
        assert got == [oracle.alone(prompt, COUNT) for prompt in prompts]
        failures = await it.decode.failures()
        assert set(failures) <= {("corrupt", ""), ("unreachable", "")}
        assert 1 <= sum(failures.values()) <= 6
