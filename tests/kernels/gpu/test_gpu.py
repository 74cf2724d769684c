"""The kernels on the GPU that is here, CUDA's or ROCm's, against the reference: every byte.

``python -m pytest tests -m gpu``; without a GPU all of this skips and says so.
"""

from __future__ import annotations

import random
import threading
from typing import Any

import pytest
import torch
from torch import Tensor

from support.kernel_buffers import guarded
from support.kernel_cases import MOVES, Case, Outcome, assert_same, run
from support.kernel_numbers import NUMBERS
from transload_kernels import operations
from transload_kernels.pipeline import Chunk, GpuStage, Pipeline, plan_chunks

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not torch.cuda.is_available(),
        reason=f"torch {torch.__version__} sees no GPU here: nothing was run on one",
    ),
    pytest.mark.timeout(600),
]

FAMILIES = {family.__name__: family for family in (*MOVES, *NUMBERS)}


def on_gpu(argument: Any, with_offsets: bool) -> Any:
    """Tables of offsets may be on either side."""
    return argument.cuda() if with_offsets and isinstance(argument, Tensor) else argument


def run_on_gpu(case: Case, implementation: str, with_offsets: bool) -> Outcome:
    """Make a call on the GPU's memory; buffers keep their guards and how they are aligned."""
    memories = [[each.memory.cuda() for each in side] for side in (case.dst, case.src)]
    buffers: list[Any] = [
        [
            memory[each.start : each.start + each.num_bytes]
            for each, memory in zip(side, of_side, strict=True)
        ]
        for side, of_side in zip((case.dst, case.src), memories, strict=True)
    ]
    arguments = [on_gpu(argument, with_offsets) for argument in case.arguments]
    flat = buffers if case.is_list else [*buffers[0], *buffers[1]]
    result = getattr(operations, case.operation)(*flat, *arguments, implementation=implementation)
    dst, src = ([memory.cpu() for memory in of_side] for of_side in memories)
    return Outcome(dst, src, None if result is None else result.cpu())


@pytest.mark.parametrize("with_offsets", [False, True], ids=["cpu offsets", "gpu offsets"])
@pytest.mark.parametrize("implementation", ["triton", "torch"])
@pytest.mark.parametrize("family", FAMILIES)
def test_a_gpu_does_what_the_reference_does(
    family: str, implementation: str, with_offsets: bool
) -> None:
    for case in FAMILIES[family]():
        assert_same(case, run_on_gpu(case, implementation, with_offsets), run(case, "reference"))


def test_offsets_beyond_4_gib() -> None:
    far = (5 << 30) + 16
    free, _ = torch.cuda.mem_get_info()
    if free < 6 << 30:
        pytest.skip(f"{free >> 20} MiB are free on the GPU, 6 GiB are needed")
    pool = torch.zeros(far + 4096, dtype=torch.uint8, device="cuda")
    content = torch.randint(1, 256, (4096,), dtype=torch.uint8)
    pool[far : far + 4096] = content.cuda()
    offsets = (torch.tensor([64]), torch.tensor([far]))
    operations.relayout_rows(pool, pool, *offsets, 4096, (), implementation="triton")
    assert torch.equal(pool[64 : 64 + 4096].cpu(), content)


def test_calls_are_ordered_by_the_stream() -> None:
    pool = torch.zeros(3 << 20, dtype=torch.uint8, device="cuda")
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        pool[: 1 << 20] = 7
        for step in range(2):
            at = (torch.tensor([(step + 1) << 20]), torch.tensor([step << 20]))
            operations.relayout_rows(pool, pool, *at, 1 << 20, (), implementation="triton")
    stream.synchronize()
    assert bool((pool == 7).all())


def test_blocks_cross_a_pipeline_from_gpu_to_gpu() -> None:
    rng = random.Random(4)
    num_blocks, block_bytes, budget, depth = 64, 65536, 1 << 20, 3
    here = guarded(rng, num_blocks * block_bytes).buffer.cuda()
    there = torch.zeros_like(here)
    ids = rng.sample(range(num_blocks), 40)
    chunks = plan_chunks([block_bytes] * len(ids), budget, depth)
    wire: list[Tensor] = []

    def runs(chunk: Chunk, is_gather: bool) -> Tensor:
        blocks = torch.tensor(ids[chunk.first_item : chunk.first_item + chunk.num_items])
        packed, zeros = torch.arange(len(blocks)) * block_bytes, torch.zeros_like(blocks)
        to, of = (packed, blocks * block_bytes) if is_gather else (blocks * block_bytes, packed)
        return torch.stack([zeros, to, zeros, of, zeros + block_bytes], dim=1)

    def gather(chunk: Chunk, slot: Tensor) -> None:
        operations.copy_runs([slot], [here], runs(chunk, is_gather=True))

    def send(chunk: Chunk, slot: Tensor) -> None:
        assert slot.is_pinned()
        wire.append(slot.clone())

    def receive(chunk: Chunk, slot: Tensor) -> None:
        slot.copy_(wire[chunk.number])

    def scatter(chunk: Chunk, slot: Tensor) -> None:
        operations.copy_runs([there], [slot], runs(chunk, is_gather=False))

    device = torch.device("cuda", torch.cuda.current_device())
    with GpuStage(device, budget, depth) as stage:
        steps = [("gather", stage.gathering(gather)), ("send", stage.sending(send))]
        Pipeline(chunks, steps, depth).run()
    with GpuStage(device, budget, depth) as stage:
        steps = [("receive", stage.receiving(receive)), ("scatter", stage.scattering(scatter))]
        Pipeline(chunks, steps, depth).run()
    sent = torch.zeros(num_blocks, dtype=torch.bool)
    sent[ids] = True
    here, there = (pool.view(num_blocks, block_bytes).cpu() for pool in (here, there))
    assert torch.equal(there[sent], here[sent])
    assert not there[~sent].any()
    assert not [each for each in threading.enumerate() if each.name.startswith("transload-step")]
