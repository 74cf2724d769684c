"""Reference engines of one host, whose blocks are read where they are: the tokens of one alone."""

import gc
import hashlib
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.reference_engines import MODEL, Asked, Handoff, serve_reference, settle, write_model
from support.reference_oracle import Oracle
from support.tiny_models import some_tokens
from transload_connector.transports import reader_shared, shared_memory
from transload_connector.transports.reader_client import ReaderClient
from transload_connector.transports.reader_shared import SharedMover
from transload_connector.transports.shared_memory import FOLDER, PREFIX, NoSharedMemory
from transload_engine.server import model_command

COUNT = 8
LENGTHS = (1, 15, 16, 33, 130)
PREFILL = ("--kv-layout", "k-transposed", "--block-size", "16")
DECODE = ("--kv-layout", "separate", "--block-size", "8")
AUTO = ("--kv-transport", "auto")
SHM = ("--kv-transport", "shm")
TCP = ("--kv-transport", "tcp")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="module")
def oracle(folder: Path) -> Oracle:
    return Oracle(folder)


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    yield
    gc.collect()
    assert _files() == []


def _files() -> list[Path]:
    digest = hashlib.sha256(MODEL.encode()).hexdigest()[:12]
    return list(FOLDER.glob(f"{PREFIX}{digest}*"))


async def check(p: Asked, d: Asked, oracle: Oracle, num_shared: int) -> None:
    """Prompts that p reads and d answers; so many are read in shared memory."""
    for length in LENGTHS:
        prompt = some_tokens(length, length)
        handoff = await p.prefill(prompt)
        got = await d.tokens(prompt, kv_transfer_params=handoff)
        assert got == oracle.alone(prompt, COUNT)
    assert await d.failures() == {}
    found = await d.metrics()
    assert found.value("transload_kv_loads_total") == len(LENGTHS)
    assert found.value("transload_kv_shared_loads_total") == num_shared
    assert found.value("transload_kv_loaded_tokens_total") == sum(LENGTHS)
    assert found.value("transload_kv_loaded_bytes_total") > 0
    await settle(p, d)
    ends = (await p.metrics()).value("transload_kv_handoffs_ended_total", end="ended")
    assert ends == len(LENGTHS)


@pytest.mark.parametrize("transport", [AUTO, SHM], ids=lambda one: one[1])
async def test_blocks_of_this_host_are_read_where_they_are(
    folder: Path, oracle: Oracle, transport: tuple[str, str]
) -> None:
    async with (
        serve_reference(folder, *PREFILL, *transport) as p,
        serve_reference(folder, *DECODE, *transport) as d,
    ):
        assert len(_files()) >= 2
        await check(p, d, oracle, num_shared=len(LENGTHS))


@pytest.mark.parametrize(
    ("of_prefill", "of_decode"), [(TCP, TCP), (TCP, AUTO), (AUTO, TCP)], ids=str
)
async def test_they_move_over_tcp_where_one_side_says_so(
    folder: Path, oracle: Oracle, of_prefill: tuple[str, str], of_decode: tuple[str, str]
) -> None:
    async with (
        serve_reference(folder, *PREFILL, *of_prefill) as p,
        serve_reference(folder, *DECODE, *of_decode) as d,
    ):
        await check(p, d, oracle, num_shared=0)


async def test_blocks_that_are_converted_are_read_there_too(folder: Path, oracle: Oracle) -> None:
    prompt = some_tokens(60)
    async with (
        serve_reference(folder, *PREFILL, *AUTO, "--kv-dtype", "bfloat16") as p,
        serve_reference(folder, *DECODE, *AUTO) as d,
    ):
        got = await d.tokens(prompt, kv_transfer_params=await p.prefill(prompt))
        assert got == oracle.moved(prompt, COUNT, "bf16", "f32")
        assert (await d.metrics()).value("transload_kv_shared_loads_total") == 1
        await settle(p, d)


async def test_nothing_else_is_tried_where_memory_alone_will_do(
    folder: Path, oracle: Oracle
) -> None:
    prompt = some_tokens(40)
    async with (
        serve_reference(folder, *PREFILL, *TCP) as p,
        serve_reference(folder, *DECODE, *SHM) as d,
    ):
        got = await d.tokens(prompt, kv_transfer_params=await p.prefill(prompt))
        assert got == oracle.alone(prompt, COUNT)
        assert await d.failures() == {("refused", ""): 1}
        await settle(p, d)


async def test_files_that_others_cannot_find_are_no_loss(folder: Path, oracle: Oracle) -> None:
    async with (
        serve_reference(folder, *PREFILL, *AUTO) as p,
        serve_reference(folder, *DECODE, *AUTO) as d,
    ):
        for file in _files():
            file.unlink()
        await check(p, d, oracle, num_shared=0)


async def test_blocks_that_are_given_to_others_amid_a_copy_are_not_used(
    folder: Path, oracle: Oracle, monkeypatch: pytest.MonkeyPatch
) -> None:
    prompt = some_tokens(40)
    monkeypatch.setattr(reader_shared, "STEP_PIECES", 1)
    steps = SharedMover.steps
    async with (
        serve_reference(folder, *PREFILL, *AUTO) as p,
        serve_reference(folder, *DECODE, *AUTO) as d,
    ):
        handoff = await p.prefill(prompt)

        def overtaken(*of: Any) -> Iterator[int]:
            for number, num_bytes in enumerate(steps(*of)):
                yield num_bytes
                if number == 0:
                    forgo(handoff)
                    assert p.memory is not None
                    for pool in p.memory.pools.values():
                        pool.zero_()

        monkeypatch.setattr(SharedMover, "steps", overtaken)
        assert await d.tokens(prompt, kv_transfer_params=handoff) == oracle.alone(prompt, COUNT)
        assert await d.failures() == {("expired", ""): 1}
        assert (await d.metrics()).value("transload_kv_shared_loads_total") == 0
        await settle(p, d)


def forgo(handoff: Handoff) -> None:
    """Somebody else ends the lease."""
    address = (handoff["remote_host"], handoff["remote_port"])
    with ReaderClient(None, name="router", generation="r") as client:
        lease = handoff["transload"]["lease"]
        client.forgo(address, handoff["remote_request_id"], lease).result(10)


async def test_a_host_without_the_memory_is_served_over_tcp(
    folder: Path,
    oracle: Oracle,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def lacking(*_: object) -> shared_memory.SharedPool:
        raise NoSharedMemory("transload-x", "0 are free")

    monkeypatch.setattr(model_command, "create_pool", lacking)
    with caplog.at_level(logging.WARNING, "transload_engine"):
        async with (
            serve_reference(folder, *PREFILL, *AUTO) as p,
            serve_reference(folder, *DECODE, *AUTO) as d,
        ):
            await check(p, d, oracle, num_shared=0)
    assert "0 are free" in caplog.text
    with pytest.raises(ValueError, match=r"--kv-transport shm: .*0 are free"):
        async with serve_reference(folder, *SHM):
            pass
