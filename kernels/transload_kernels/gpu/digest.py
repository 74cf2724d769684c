# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="valid-type"
"""The kernels of `digest_blocks`; the number is defined in `reference.digest`.

A program adds up one part of one block's mixed words; parts meet in an atomic addition, whose
order cannot matter, and a second kernel mixes in the lengths. Two ways to fetch words: a row that
is a whole number of them is read as a tile; otherwise each piece of each word is found by itself.
"""

import triton
import triton.language as tl

from transload_kernels.gpu.indexing import divide, peel
from transload_kernels.reference.digest import LENGTH, MIX, STEP

SCALARS = (
    *("num_items", "num_parts", "part_mul", "part_shift", "part_tiles", "num_rows", "row_words"),
    *("row_bytes", "row_mul", "row_shift", "num_bytes", "col_tiles", "tile_mul", "tile_shift"),
    *(f"{field}{loop}" for loop in range(4) for field in ("count", "mul", "shift", "src")),
)

_STEP = tl.constexpr(STEP)
_MIX = tl.constexpr(MIX)
_LENGTH = tl.constexpr(LENGTH)


@triton.jit
def mix(word):
    """`reference.digest.mix` of uint64."""
    factor = tl.full((), _MIX, tl.uint64)
    word ^= word >> 32
    word *= factor
    word ^= word >> 32
    word *= factor
    return word ^ (word >> 32)


@triton.jit(do_not_specialize=("src_ptr", *SCALARS))
def digest_kernel(
    sums_ptr,
    src_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    offsets_ptr,
    num_items: tl.int32,
    num_parts: tl.uint32,
    part_mul: tl.uint32,
    part_shift: tl.uint32,
    part_tiles: tl.int32,
    num_rows: tl.int64,
    row_words: tl.int64,
    row_bytes: tl.uint32,
    row_mul: tl.uint32,
    row_shift: tl.uint32,
    num_bytes: tl.int64,
    col_tiles: tl.uint32,
    tile_mul: tl.uint32,
    tile_shift: tl.uint32,
    count0: tl.uint32,
    mul0: tl.uint32,
    shift0: tl.uint32,
    src0: tl.int64,
    count1: tl.uint32,
    mul1: tl.uint32,
    shift1: tl.uint32,
    src1: tl.int64,
    count2: tl.uint32,
    mul2: tl.uint32,
    shift2: tl.uint32,
    src2: tl.int64,
    count3: tl.uint32,
    mul3: tl.uint32,
    shift3: tl.uint32,
    src3: tl.int64,
    WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LOOPS: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """Add mixed words to `sums_ptr[block]`.

    A tile is ROWS rows by COLS words; where IS_SPLIT, words may end in another row than they begin
    in, and a tile is COLS words of the block (ROWS 1). WIDTH divides every address and row.
    """
    PIECE: tl.constexpr = 8 if WIDTH > 8 else WIDTH
    piece_type: tl.constexpr = (
        tl.uint64
        if PIECE == 8
        else tl.uint32
        if PIECE == 4
        else tl.uint16
        if PIECE == 2
        else tl.uint8
    )
    VECTOR: tl.constexpr = WIDTH // PIECE
    src = tl.multiple_of(src_ptr.to(tl.pointer_type(piece_type)), WIDTH)
    for item in range(tl.program_id(0), num_items, tl.num_programs(0)):
        block, part = peel(tl.cast(item, tl.int64), num_parts, part_mul, part_shift)
        start = tl.load(offsets_ptr + block)
        total = tl.zeros((ROWS, COLS), dtype=tl.uint64)
        for tile in range(0, part_tiles):
            place, tile_col = peel(part * part_tiles + tile, col_tiles, tile_mul, tile_shift)
            col = tile_col * COLS + tl.arange(0, COLS)[None, :]
            row = place * ROWS + tl.arange(0, ROWS)[:, None]
            word = tl.zeros((ROWS, COLS), dtype=tl.uint64)
            if IS_SPLIT:
                index = (place * COLS + tl.arange(0, COLS)[None, :]) + tl.zeros_like(row)
                is_word = index * 8 < num_bytes
                for piece in tl.static_range(8 // PIECE):
                    byte = index * 8 + piece * PIECE
                    is_here = byte < num_bytes
                    line = divide(byte, row_mul, row_shift)
                    at = start + (byte - line * row_bytes.to(tl.int64))
                    if LOOPS > 0:
                        line, loop = peel(line, count0, mul0, shift0)
                        at += loop * src0
                    if LOOPS > 1:
                        line, loop = peel(line, count1, mul1, shift1)
                        at += loop * src1
                    if LOOPS > 2:
                        line, loop = peel(line, count2, mul2, shift2)
                        at += loop * src2
                    if LOOPS > 3:
                        line, loop = peel(line, count3, mul3, shift3)
                        at += loop * src3
                    bits = tl.load(src + at // PIECE, mask=is_here, other=0)
                    word |= bits.to(tl.uint64) << (8 * PIECE * piece)
            else:
                index = row * row_words + col
                is_word = (row < num_rows) & (col < row_words // VECTOR * VECTOR)
                line = row
                at = tl.zeros_like(row) + start
                if LOOPS > 0:
                    line, loop = peel(line, count0, mul0, shift0)
                    at += loop * src0
                if LOOPS > 1:
                    line, loop = peel(line, count1, mul1, shift1)
                    at += loop * src1
                if LOOPS > 2:
                    line, loop = peel(line, count2, mul2, shift2)
                    at += loop * src2
                if LOOPS > 3:
                    line, loop = peel(line, count3, mul3, shift3)
                    at += loop * src3
                for piece in tl.static_range(8 // PIECE):
                    where = at // WIDTH * VECTOR + col * (8 // PIECE) + piece
                    bits = tl.load(src + where, mask=is_word, other=0)
                    word |= bits.to(tl.uint64) << (8 * PIECE * piece)
            mixed = mix(word + (index + 1).to(tl.uint64) * tl.full((), _STEP, tl.uint64))
            total += tl.where(is_word, mixed, tl.full((), 0, tl.uint64))
        part_sum = tl.sum(tl.sum(total, axis=1), axis=0)
        tl.atomic_add(sums_ptr + block, part_sum.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=("num_blocks", "num_bytes"))
def finish_kernel(sums_ptr, num_blocks: tl.int64, num_bytes: tl.int64, SIZE: tl.constexpr):
    """Make digests of the sums, in place."""
    at = tl.program_id(0).to(tl.int64) * SIZE + tl.arange(0, SIZE)
    is_block = at < num_blocks
    total = tl.load(sums_ptr + at, mask=is_block, other=0).to(tl.uint64)
    total += num_bytes.to(tl.uint64) * tl.full((), _LENGTH, tl.uint64)
    tl.store(sums_ptr + at, mix(total).to(tl.int64), mask=is_block)
