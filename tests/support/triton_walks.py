"""Calls that only Triton's kernels find awkward, by its interpreter, compared with the reference.

    TRITON_INTERPRET=1 python -m support.triton_walks

A line for each walk that went well, with the number of its calls; the first difference ends it
with a traceback. A program of its own, for the mode is the process's.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor

from support.kernel_buffers import Guarded, guarded, holding, side, sparse
from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace, ScaleType
from transload_kernels.gpu import TritonKernels, conversion, launch, moves, sums, turns
from transload_kernels.gpu.launch import Tuning
from transload_kernels.gpu.launcher import TritonLauncher
from transload_kernels.reference import ReferenceKernels

TUNINGS = (Tuning(3, 128, 64), Tuning(1, 512, 64), Tuning(4, 2048, 512))
REFERENCE = ReferenceKernels()

_made = {"calls": 0}


def kernels(tuning: Tuning) -> TritonKernels:
    return TritonKernels(TritonLauncher(tuning))


def compare(tuning: Tuning, op: str, dst: Guarded, *arguments: Any) -> None:
    """Make one call by both; all memory of the destination must be the same afterwards."""
    made, expected = dst.copy(), dst.copy()
    getattr(kernels(tuning), op)(made.buffer, *arguments)
    getattr(REFERENCE, op)(expected.buffer, *arguments)
    differing = (made.memory != expected.memory).nonzero().flatten()
    assert not len(differing), f"{op} {tuning} {arguments[1:]}: bytes {differing[:8].tolist()}"
    _made["calls"] += 1


def table(numbers: list[int]) -> Tensor:
    return torch.tensor(numbers, dtype=torch.int64)


def rows_of_all_sizes(num_calls: int = 10) -> None:
    rng = random.Random(11)
    for _ in range(num_calls):
        row_bytes = rng.choice((1, 2, 7, 24, 132, 656, 1000, rng.randint(1, 900)))
        depth = rng.randint(0, 5)
        counts = [rng.randint(1, 3) if depth < 4 else 2 for _ in range(depth)]
        unit = rng.choice((1, 2, 4, 8, 16))
        padded = rng.choice((row_bytes, -(-row_bytes // 16) * 16))
        to, of = (side(rng, 2, counts, padded, unit) for _ in range(2))
        loops = tuple(zip(counts, of.strides, to.strides, strict=True))
        dst = guarded(rng, to.num_bytes, rng.choice((0, 0, 8, 1)))
        src = guarded(rng, of.num_bytes, rng.choice((0, 0, 4, 2)))
        offsets = (table(to.offsets), table(of.offsets))
        compare(rng.choice(TUNINGS), "relayout_rows", dst, src.buffer, *offsets, row_bytes, loops)
        zeroed = tuple((count, stride) for count, _, stride in loops)
        compare(rng.choice(TUNINGS), "zero_tail", dst, offsets[0], row_bytes, zeroed)


def tiles_of_all_shapes(num_calls: int = 15) -> None:
    rng = random.Random(12)
    for _ in range(num_calls):
        size = rng.choice((1, 2, 4, 8))
        counts = [rng.choice((1, 3, 8, 16, 40, 130)), rng.choice((1, 2, 16, 33, 64))]
        counts = [*[rng.randint(1, 3) for _ in range(rng.randint(0, 2))], *counts]
        to, of = (side(rng, rng.choice((1, 3)), counts, size, size) for _ in range(2))
        num_blocks = min(len(to.offsets), len(of.offsets))
        loops = tuple(zip(counts, of.strides, to.strides, strict=True))
        dst = guarded(rng, to.num_bytes, rng.choice((0, 0, 0, 1)))
        src = guarded(rng, of.num_bytes)
        offsets = (table(to.offsets[:num_blocks]), table(of.offsets[:num_blocks]))
        tile = (loops[-2], loops[-1]) if rng.random() < 0.5 else (loops[-1], loops[-2])
        compare(
            *(rng.choice(TUNINGS), "transpose_pages", dst, src.buffer, *offsets, size, tile),
            loops[:-2],
        )


def formats(rng: random.Random, num_elements: int) -> Format:
    element = rng.choice(tuple(ELEMENT_BITS))
    if element == "u4":
        group = rng.choice([g for g in (2, 6, 8, 24, 48) if num_elements % g == 0])
        return Format(element, "f32_zero4", group)
    if ELEMENT_BITS[element] > 8:
        return Format(element)
    scales: tuple[ScaleType, ...] = ("none", "tensor", "f32", "ue8m0")
    scale = rng.choice(scales)
    if scale in ("none", "tensor"):
        return Format(element, scale, 0, rng.choice((1.0, 0.37, 3e-39)))
    return Format(
        element, scale, rng.choice([g for g in (1, 6, 16, 24, 48) if num_elements % g == 0])
    )


def placed(
    rng: random.Random, of: Format, num_elements: int, counts: list[int], num_blocks: int
) -> tuple[list[int], list[int], ScalePlace | None, int]:
    """Offsets, strides and scales of rows whose scales follow them or lie behind all rows."""
    row = num_elements * ELEMENT_BITS[of.element] // 8
    if not SCALE_BYTES[of.scale]:
        rows = side(rng, num_blocks, counts, row, rng.choice((1, 2, 4)))
        return rows.offsets, rows.strides, None, rows.num_bytes
    gap, scales = rng.choice((0, 1, 4)), SCALE_BYTES[of.scale] * (num_elements // of.group_elements)
    rows = side(rng, num_blocks, counts, row + gap + scales, rng.choice((1, 4)))
    place = ScalePlace(row + gap, tuple(rows.strides), SCALE_BYTES[of.scale])
    return rows.offsets, rows.strides, place, rows.num_bytes


def numbers_of_all_formats(num_calls: int = 25) -> None:
    rng = random.Random(13)
    for number in range(num_calls):
        num_elements = rng.choice((48, 96, 144))
        counts = [rng.randint(1, 3) for _ in range(rng.randint(0, 3))]
        num_blocks = rng.choice((1, 2))
        of, to = formats(rng, num_elements), formats(rng, num_elements)
        if not number:
            of, to = Format("u4", "f32_zero4", 24), Format("e4m3", "ue8m0", 1)
        src_at = placed(rng, of, num_elements, counts, num_blocks)
        dst_at = placed(rng, to, num_elements, counts, num_blocks)
        loops = tuple(zip(counts, src_at[1], dst_at[1], strict=True))
        compare(
            *(rng.choice(TUNINGS), "convert_rows", guarded(rng, dst_at[3], rng.choice((0, 1)))),
            guarded(rng, src_at[3], rng.choice((0, 0, 2))).buffer,
            *(table(dst_at[0]), table(src_at[0]), num_elements, loops, of, to),
            *(src_at[2], dst_at[2]),
        )


def every_number_of_16_bits() -> None:
    patterns = torch.arange(65536, dtype=torch.int32).to(torch.int16)
    src, at = holding(patterns), table([0])
    for element in ("f16", "bf16"):
        for other in ELEMENT_BITS:
            dst = guarded(random.Random(14), 65536 * ELEMENT_BITS[other] // 8)
            of, to = Format(element), Format(other)
            compare(
                TUNINGS[2], "convert_rows", dst, src.buffer, at, at, 65536, (), of, to, None, None
            )


def digests_of_all_shapes(num_calls: int = 10) -> None:
    rng = random.Random(15)
    for _ in range(num_calls):
        row_bytes = rng.choice((1, 3, 8, 24, 132, 656, 2048, 10_000))
        counts = [rng.randint(1, 5) for _ in range(rng.randint(0, 3))]
        of = side(rng, 2, counts, row_bytes, rng.choice((1, 4, 8)))
        src = guarded(rng, of.num_bytes, rng.choice((0, 0, 2, 1))).buffer
        loops = tuple(zip(counts, of.strides, strict=True))
        arguments = (src, table(of.offsets), row_bytes, loops)
        made = kernels(rng.choice(TUNINGS)).digest_blocks(*arguments)
        assert torch.equal(made, REFERENCE.digest_blocks(*arguments)), (row_bytes, loops)
        _made["calls"] += 1


def runs_of_all_lengths(num_calls: int = 6) -> None:
    rng = random.Random(16)
    for _ in range(num_calls):
        pools = [guarded(rng, 40_000, rng.choice((0, 1, 8))) for _ in range(3)]
        sources = [guarded(rng, 40_000, rng.choice((0, 4))).buffer for _ in range(2)]
        runs, ends = [], [0, 0, 0]
        for _ in range(rng.randint(1, 14)):
            pool, unit = rng.randrange(3), rng.choice((1, 2, 16))
            length = rng.choice((0, 1, 16, 300, 4096, rng.randint(1, 9000)))
            start = -(-ends[pool] // unit) * unit
            if start + length <= 40_000:
                from_ = rng.randrange(0, 40_001 - length, unit)
                runs.append([pool, start, rng.randrange(2), from_, length])
                ends[pool] = start + length
        made, expected = ([pool.copy() for pool in pools] for _ in range(2))
        arguments = (sources, torch.tensor(runs, dtype=torch.int64).view(-1, 5))
        kernels(rng.choice(TUNINGS)).copy_runs([one.buffer for one in made], *arguments)
        REFERENCE.copy_runs([one.buffer for one in expected], *arguments)
        assert all(map(torch.equal, (m.memory for m in made), (e.memory for e in expected))), runs
        _made["calls"] += 1


@contextmanager
def limited(name: str, number: int) -> Iterator[None]:
    """A limit of launches that small calls reach."""
    modules: list[Any] = [launch, moves, turns, conversion, sums]
    kept = [(module, getattr(module, name)) for module in modules if hasattr(module, name)]
    for module, _ in kept:
        setattr(module, name, number)
    yield
    for module, before in kept:
        setattr(module, name, before)


def calls_of_many_launches() -> None:
    with limited("MAX_INDEX", 2000):
        tiles_of_all_shapes(8)
    with limited("MAX_INDEX", 200), limited("PIECE_BYTES", 500):
        runs_of_all_lengths(3)
        rows_of_all_sizes(6)
    with limited("MAX_INDEX", 700):
        numbers_of_all_formats(12)


def beyond_4_gib() -> None:
    """Offsets and strides of more than 32 bits, in memory that is mostly not there."""
    far = (5 << 30) + 48
    src, dst = sparse(far + (1 << 20)), sparse(far + (1 << 20))
    content = torch.linspace(1, 2, 4096).view(torch.uint8)
    src[far : far + 16384] = content
    src[:16384] = content.flip(0)
    near = kernels(TUNINGS[0])
    loops = ((2, far, 32), (64, 256, 64))
    near.relayout_rows(dst, src, table([far]), table([0]), 32, loops)
    expected = torch.zeros(4096, dtype=torch.uint8)
    REFERENCE.relayout_rows(expected, src, table([0]), table([0]), 32, loops)
    assert torch.equal(dst[far : far + 4096], expected)
    near.copy_runs([dst], [src], torch.tensor([[0, 64, 0, far, 16384]]))
    assert torch.equal(dst[64 : 64 + 16384], content)
    near.transpose_pages(dst, src, table([far]), table([far]), 4, ((64, 256, 4), (64, 4, 256)), ())
    turned = content.view(torch.int32).view(64, 64).T.contiguous().view(torch.uint8).flatten()
    assert torch.equal(dst[far : far + 16384], turned)
    near.convert_rows(
        *(dst, src, table([far]), table([far]), 4096, (), Format("f32"), Format("bf16")),
        *(None, None),
    )
    rounded = torch.zeros(8192, dtype=torch.uint8)
    REFERENCE.convert_rows(
        *(rounded, content, table([0]), table([0]), 4096, (), Format("f32"), Format("bf16")),
        *(None, None),
    )
    assert torch.equal(dst[far : far + 8192], rounded)
    digests = near.digest_blocks(src, table([far, 0]), 16384, ())
    alone = REFERENCE.digest_blocks(content, table([0]), 16384, ())
    assert digests[0] == alone[0] != digests[1]
    near.zero_tail(dst, table([far]), 100, ((2, 200),))
    assert not dst[far : far + 100].any()
    assert dst[far + 104 : far + 108].any()
    _made["calls"] += 6


WALKS: tuple[Callable[..., None], ...] = (
    *(rows_of_all_sizes, tiles_of_all_shapes, numbers_of_all_formats, every_number_of_16_bits),
    *(digests_of_all_shapes, runs_of_all_lengths, calls_of_many_launches, beyond_4_gib),
)


def main() -> None:
    for walk in [walk for walk in WALKS if walk.__name__ in sys.argv[1:]] or WALKS:
        _made["calls"] = 0
        walk()
        sys.stdout.write(f"{walk.__name__} {_made['calls']}\n")


if __name__ == "__main__":
    main()
