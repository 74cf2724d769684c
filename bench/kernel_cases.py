"""What `kernels.py` runs: the memory, the flat copies, and each operation beside torch's own ways.

A contender is a function of a turn: turns walk through pools much larger than the caches, so that
nobody finds data or destination in one. All that a turn needs but its copying is made before.
"""

import ctypes
import math
import random
from collections.abc import Callable, Iterable, Iterator
from typing import Final, NamedTuple

import torch
from torch import Tensor

from transload_kernels.cpu import CpuKernels
from transload_kernels.formats import ELEMENT_BITS, SCALE_BYTES, Format, ScalePlace
from transload_kernels.implementation import Implementation, Loop
from transload_kernels.reference import ReferenceKernels
from transload_kernels.torch_path import TorchKernels

POOL_BYTES: Final = 512 << 20
MOST_PAYLOAD: Final = 128 << 20
"""Of one turn, so that random blocks are a small part of the pool and turns do not meet."""
FLAT: Final = ("memcpy", "nt")
"""The flat copies of the same bytes: glibc's, and one run past the caches."""

TORCH: Final = TorchKernels()
Turn = Callable[[int], object]
Table = list[Tensor]


class Case(NamedTuple):
    """One row of a table.

    Attributes:
        section: The table.
        name: What is copied.
        payload: Bytes of a turn; of a conversion the mean of what is read and written.
        turns: In one sample, of each contender.
        contenders: Ours is `ours`; `FLAT` are the limits.
        aim: Least ratio of ours to the best flat copy; 0: none.
        fewer: Of a contender too slow for the payload: the part of it that it does.
    """

    section: str
    name: str
    payload: int
    turns: int
    contenders: dict[str, Turn]
    aim: float
    fewer: dict[str, float]


class Memory:
    """Two pools, touched, and the C++ kernels that copy between them on one thread."""

    def __init__(self) -> None:
        self.src = torch.zeros(POOL_BYTES, dtype=torch.uint8)
        self.src.view(torch.int64).copy_(torch.arange(POOL_BYTES // 8))
        self.dst = torch.ones(POOL_BYTES, dtype=torch.uint8)
        self.ours = CpuKernels(threads=1)
        self._libc = ctypes.CDLL(None)
        self._libc.memcpy.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def window(self, turn: int, num_bytes: int) -> int:
        """Where the turn's piece of a pool begins, a page's multiple."""
        step = -(-num_bytes // 4096) * 4096
        return turn % (POOL_BYTES // step) * step

    def flat(self, payload: int) -> dict[str, Turn]:
        """Copies of the same bytes in one run."""

        def memcpy(turn: int) -> None:
            at = self.window(turn, payload)
            self._libc.memcpy(self.dst.data_ptr() + at, self.src.data_ptr() + at, payload)

        tables = [_offsets([self.window(turn, payload)]) for turn in range(POOL_BYTES // payload)]

        def streamed(turn: int) -> None:
            at = tables[turn % len(tables)]
            self.ours.relayout_rows(self.dst, self.src, at, at, payload, ())

        return {"memcpy": memcpy, "nt": streamed}

    def case(
        self,
        section: str,
        name: str,
        payload: int,
        contenders: dict[str, Turn],
        aim: float,
        fewer: dict[str, float] | None = None,
    ) -> Case:
        """A case whose samples move 64 MiB, or one turn's bytes where those are more."""
        turns = max(1, (64 << 20) // payload)
        contenders = {**self.flat(payload), **contenders}
        return Case(section, name, payload, turns, contenders, aim, fewer or {})


def gathers(memory: Memory) -> Iterator[Case]:
    """Blocks by id into a contiguous piece: the same layout on both sides."""
    for block in (64 << 10, 256 << 10, 1 << 20, 4 << 20):
        for count in (1, 8, 64, 512):
            if block * count > MOST_PAYLOAD:
                continue
            for order in ("random", "sorted"):
                name = f"{count} x {block >> 10} KiB, {order} ids"
                contenders = _gather(memory, block, count, order)
                yield memory.case("gather", name, block * count, contenders, 0.90)


def _gather(memory: Memory, block: int, count: int, order: str) -> dict[str, Turn]:
    payload = block * count
    num_tables = POOL_BYTES // payload
    ids = list(range(POOL_BYTES // block))
    random.Random(1).shuffle(ids)
    chosen = [ids[turn * count : (turn + 1) * count] for turn in range(num_tables)]
    if order == "sorted":
        chosen = [sorted(each) for each in chosen]
    id_tables = [torch.tensor(each) for each in chosen]
    src_tables = [each * block for each in id_tables]
    dst_tables = [_offsets(range(t * payload, (t + 1) * payload, block)) for t in range(num_tables)]
    pool, out = memory.src.view(-1, block), memory.dst.view(-1, block)

    def ours(turn: int) -> None:
        at = turn % num_tables
        memory.ours.relayout_rows(memory.dst, memory.src, dst_tables[at], src_tables[at], block, ())

    def index_select(turn: int) -> None:
        at = turn % num_tables
        torch.index_select(pool, 0, id_tables[at], out=out[at * count : (at + 1) * count])

    def loop(turn: int) -> None:
        at = turn % num_tables
        for to, of in enumerate(chosen[at], at * count):
            out[to].copy_(pool[of])

    return {"ours": ours, "index_select": index_select, "torch loop": loop}


class Relayout(NamedTuple):
    """Blocks of a pool whose rows lie otherwise in the staging; all of 32 blocks."""

    name: str
    row: int
    loops: tuple[Loop, ...]
    src_block: int
    dst_block: int
    block: int
    aim: float


def _permuted(
    name: str, row: int, axes: dict[str, int], src: str, dst: str, aim: float
) -> Relayout:
    """Blocks whose axes are ordered one way here and another there; `B` is the pool's blocks."""
    strides = []
    for order, blocks in ((src, 32), (dst, 32)):
        step, of = row, {}
        for axis in reversed(order):
            of[axis] = step
            step *= blocks if axis == "B" else axes[axis]
        strides.append(of)
    loops = tuple((axes[a], strides[0][a], strides[1][a]) for a in dst if a != "B")
    block = row * math.prod(axes.values())
    return Relayout(name, row, loops, strides[0]["B"], strides[1]["B"], block, aim)


_LAYERS: Final = {"L": 32, "H": 8, "N": 16}
RELAYOUTS: Final = (
    _permuted("LBHNC to BLHNC, 64 KiB rows", 65536, {"L": 32}, "LB", "BL", 0.75),
    _permuted("LBHNC to BHLNC, 8 KiB rows", 8192, {"L": 32, "H": 8}, "LBH", "BHL", 0.75),
    _permuted("LBHNC to BLNHC, 512 B rows", 512, _LAYERS, "LBHN", "BLNH", 0.75),
    _permuted("LBNHC to BLHNC, 512 B rows", 512, _LAYERS, "LBNH", "BLHN", 0.75),
    _permuted("LBHNC to BNLHC, 512 B rows", 512, _LAYERS, "LBHN", "BNLH", 0.75),
    _permuted("LBNHC to BHLNC, 256 B rows", 256, _LAYERS, "LBNH", "BHLN", 0.75),
    _permuted("LBNC to BNLC, 1152 B rows (MLA)", 1152, {"L": 32, "N": 64}, "LBN", "BNL", 0.75),
    _permuted("LBNC to BNLC, 656 B rows", 656, {"L": 32, "N": 64}, "LBN", "BNL", 0.75),
    _permuted("LBNHC to BLHNC, 128 B rows", 128, _LAYERS, "LBNH", "BLHN", 0.0),
    _permuted("LBNHC to BLHNC, 64 B rows", 64, _LAYERS, "LBNH", "BLHN", 0.0),
    _permuted("LBNHC to BLHNC, 16 B rows", 16, _LAYERS, "LBNH", "BLHN", 0.0),
    _permuted("LBNHC to BLHNC, 4 B rows", 4, _LAYERS, "LBNH", "BLHN", 0.0),
)


def relayouts(memory: Memory) -> Iterator[Case]:
    """Rows in another order: 32 blocks of a layer-first pool, random ids."""
    for each in RELAYOUTS:
        contenders = _relayout(memory, each)
        yield memory.case("relayout", each.name, 32 * each.block, contenders, each.aim)


def _relayout(memory: Memory, it: Relayout) -> dict[str, Turn]:
    payload = 32 * it.block
    ids = list(range(32))
    random.Random(1).shuffle(ids)
    num_tables = POOL_BYTES // (-(-payload // 4096) * 4096)
    starts = [memory.window(turn, payload) for turn in range(num_tables)]
    src_tables = [_offsets(start + i * it.src_block for i in ids) for start in starts]
    dst_tables = [_offsets(start + i * it.dst_block for i in range(32)) for start in starts]
    shape = [count for count, _, _ in it.loops] + [it.row]

    def ours(turn: int) -> None:
        at = turn % num_tables
        memory.ours.relayout_rows(
            memory.dst, memory.src, dst_tables[at], src_tables[at], it.row, it.loops
        )

    def strided(turn: int) -> None:
        at = turn % num_tables
        for to, of in zip(dst_tables[at].tolist(), src_tables[at].tolist(), strict=True):
            of_strides = [stride for _, stride, _ in it.loops] + [1]
            to_strides = [stride for _, _, stride in it.loops] + [1]
            memory.dst.as_strided(shape, to_strides, to).copy_(
                memory.src.as_strided(shape, of_strides, of)
            )

    return {"ours": ours, "torch strided": strided}


def transposes(memory: Memory) -> Iterator[Case]:
    """Keys of a CPU engine's pages, `[D, N]` then the values, to cells `[N, K|V]`, and back."""
    for element, dim, tokens in (
        (2, 128, 16),
        (2, 128, 32),
        (2, 128, 128),
        (1, 128, 32),
        (4, 128, 32),
    ):
        half = element * dim * tokens
        page, cell = 2 * half, 2 * element * dim
        out_of = ((dim, tokens * element, element), (tokens, element, cell))
        into = ((tokens, cell, element), (dim, element, tokens * element))
        name = f"K {element} B x {dim} x {tokens} tokens"
        yield _transpose(memory, f"{name}, to cells", element, out_of, page, half)
        yield _transpose(memory, f"{name}, from cells", element, into, page, half)
    for element in (1, 2, 4, 8):
        rows = 1024 // element
        tile = ((rows, 1024, element), (rows, element, 1024))
        size = 1024 * rows
        yield _transpose(memory, f"{element} B x {rows} x {rows}", element, tile, size, size)


def _transpose(
    memory: Memory, name: str, element: int, tile: tuple[Loop, Loop], page: int, half: int
) -> Case:
    count = (32 << 20) // half
    payload = count * half
    num_tables = POOL_BYTES // (count * page)
    tables = [
        _offsets(range(t * count * page, (t + 1) * count * page, page)) for t in range(num_tables)
    ]
    dtype = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}[element]
    src, dst = memory.src.view(dtype), memory.dst.view(dtype)
    shape = [count, tile[0][0], tile[1][0]]

    def ours(turn: int) -> None:
        at = tables[turn % num_tables]
        memory.ours.transpose_pages(memory.dst, memory.src, at, at, element, tile, ())

    def strided(turn: int) -> None:
        start = turn % num_tables * count * page // element
        of = [page // element, *(src_stride // element for _, src_stride, _ in tile)]
        to = [page // element, *(dst_stride // element for _, _, dst_stride in tile)]
        dst.as_strided(shape, to, start).copy_(src.as_strided(shape, of, start))

    contenders: dict[str, Turn] = {"ours": ours, "torch strided": strided}
    return memory.case("transpose", name, payload, contenders, 0.50)


CONVERSIONS: Final = (
    ("656 B record's latent to bf16", Format("e4m3", "f32", 128), Format("bf16"), 512),
    ("bf16 to 656 B record's latent", Format("bf16"), Format("e4m3", "f32", 128), 512),
    ("584 B record's latent to bf16", Format("e4m3", "ue8m0", 64), Format("bf16"), 448),
    ("bf16 to 584 B record's latent", Format("bf16"), Format("e4m3", "ue8m0", 64), 448),
    ("e4m3 per tensor to bf16", Format("e4m3", "tensor", 0, 0.37), Format("bf16"), 4096),
    ("bf16 to e4m3 per tensor", Format("bf16"), Format("e4m3", "tensor", 0, 0.37), 4096),
    ("e5m2 to f16", Format("e5m2"), Format("f16"), 4096),
    ("e4m3fnuz to f32", Format("e4m3fnuz"), Format("f32"), 4096),
    ("f32 to bf16", Format("f32"), Format("bf16"), 4096),
    ("int8 per token and head to bf16", Format("i8", "f32", 128), Format("bf16"), 128),
    ("bf16 to int8 per token and head", Format("bf16"), Format("i8", "f32", 128), 128),
    ("int4 per token and head to bf16", Format("u4", "f32_zero4", 128), Format("bf16"), 128),
    ("bf16 to int4 per token and head", Format("bf16"), Format("u4", "f32_zero4", 128), 128),
)


def conversions(memory: Memory) -> Iterator[Case]:
    """Rows of numbers, scales behind each row's elements."""
    for name, src_format, dst_format, num_elements in CONVERSIONS:
        yield _conversion(memory, name, src_format, dst_format, num_elements)


def _conversion(memory: Memory, name: str, of: Format, to: Format, num_elements: int) -> Case:
    (src_row, src_scales), (dst_row, dst_scales) = _row(of, num_elements), _row(to, num_elements)
    rows = (32 << 20) // max(src_row, dst_row)
    payload = rows * (src_row + dst_row) // 2
    step = 32 << 20
    tables = [_offsets([start]) for start in range(0, POOL_BYTES, step)]
    # Bits that are numbers of every type: 0x3c is 1.1 to 1.5 as an 8-bit float, 0x3c3c 0.0115.
    memory.src.fill_(0x3C)

    def by(kernels: Implementation, num_rows: int) -> Turn:
        loops = ((num_rows, src_row, dst_row),)

        def run(turn: int) -> None:
            at = tables[turn % len(tables)]
            kernels.convert_rows(
                memory.dst,
                memory.src,
                at,
                at,
                num_elements,
                loops,
                of,
                to,
                src_scales,
                dst_scales,
            )

        return run

    fewer = {"reference": 64 * 512 // num_elements / rows}
    contenders = {
        "ours": by(memory.ours, rows),
        "torch path": by(TorchKernels(), rows),
        "reference": by(ReferenceKernels(), 64 * 512 // num_elements),
    }
    return memory.case("convert", name, payload, contenders, 0.0, fewer)


def _row(of: Format, num_elements: int) -> tuple[int, ScalePlace | None]:
    """Bytes of a row with its scales, padded to 16, and where those are."""
    elements, size = num_elements * ELEMENT_BITS[of.element] // 8, SCALE_BYTES[of.scale]
    if not size:
        return elements, None
    row = -(-(elements + num_elements // of.group_elements * size) // 4) * 4
    return row, ScalePlace(elements, (row,), size)


def small_calls(memory: Memory, size: int) -> dict[str, Callable[[Implementation], object]]:
    """One call of each operation that moves `size` bytes, of one row or tile."""
    dst, src, at = memory.dst, memory.src, _offsets([0])
    runs, tile = torch.tensor([[0, 0, 0, 0, size]]), ((size // 64, 64, 2), (32, 2, size // 32))
    f32, bf16 = Format("f32"), Format("bf16")
    return {
        "copy_runs": lambda by: by.copy_runs([dst], [src], runs),
        "relayout_rows": lambda by: by.relayout_rows(dst, src, at, at, size, ()),
        "transpose_pages": lambda by: by.transpose_pages(dst, src, at, at, 2, tile, ()),
        "convert_rows": lambda by: by.convert_rows(
            dst, src, at, at, size // 4, (), f32, bf16, None, None
        ),
        "zero_tail": lambda by: by.zero_tail(dst, at, size, ()),
        "digest_blocks": lambda by: by.digest_blocks(src, at, size, ()),
    }


def others(memory: Memory) -> Iterator[Case]:
    """Zeros and digests of 64 blocks of 1 MiB; they move half of what a copy does."""
    payload = 64 << 20
    tables = [
        _offsets(range(start, start + payload, 1 << 20)) for start in range(0, POOL_BYTES, payload)
    ]

    def zero(turn: int) -> None:
        memory.ours.zero_tail(memory.dst, tables[turn % len(tables)], 1 << 20, ())

    def digest(turn: int) -> None:
        memory.ours.digest_blocks(memory.src, tables[turn % len(tables)], 1 << 20, ())

    def torch_zero(turn: int) -> None:
        start = turn % len(tables) * payload
        memory.dst[start : start + payload].zero_()

    zeros: dict[str, Turn] = {"ours": zero, "torch zero_": torch_zero}
    yield memory.case("other", "zero_tail", payload, zeros, 0.0)
    yield memory.case("other", "digest_blocks", payload, {"ours": digest}, 0.0)


def _offsets(values: Iterable[int]) -> Tensor:
    return torch.tensor(list(values), dtype=torch.int64)
