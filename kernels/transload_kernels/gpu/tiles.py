# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="valid-type"
"""The kernel that turns element tiles over: `transpose_pages`.

The source's fast axis is the tile's last, the destination's the one before it. Each side is read
or written along its own fast axis, in accesses of its own width; between them the compiler passes
the tile through shared memory. BATCH tiles at a time keep small pages from starving a program.
"""

import triton
import triton.language as tl

from transload_kernels.gpu.indexing import peel

SCALARS = (
    *("num_pages", "num_rows", "num_cols", "src_row", "src_col", "dst_row", "dst_col"),
    *("num_tiles", "row_tiles", "row_mul", "row_shift", "col_tiles", "col_mul", "col_shift"),
    *(f"{field}{loop}" for loop in range(4) for field in ("count", "mul", "shift", "src", "dst")),
)


@triton.jit(do_not_specialize=("dst_ptr", "src_ptr", *SCALARS))
def tiles_kernel(
    dst_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    src_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    dst_offsets_ptr,
    src_offsets_ptr,
    num_pages: tl.int64,
    num_rows: tl.int32,
    num_cols: tl.int32,
    src_row: tl.int64,
    src_col: tl.int64,
    dst_row: tl.int64,
    dst_col: tl.int64,
    num_tiles: tl.int32,
    row_tiles: tl.uint32,
    row_mul: tl.uint32,
    row_shift: tl.uint32,
    col_tiles: tl.uint32,
    col_mul: tl.uint32,
    col_shift: tl.uint32,
    count0: tl.uint32,
    mul0: tl.uint32,
    shift0: tl.uint32,
    src0: tl.int64,
    dst0: tl.int64,
    count1: tl.uint32,
    mul1: tl.uint32,
    shift1: tl.uint32,
    src1: tl.int64,
    dst1: tl.int64,
    count2: tl.uint32,
    mul2: tl.uint32,
    shift2: tl.uint32,
    src2: tl.int64,
    dst2: tl.int64,
    count3: tl.uint32,
    mul3: tl.uint32,
    shift3: tl.uint32,
    src3: tl.int64,
    dst3: tl.int64,
    ELEMENT_BYTES: tl.constexpr,
    SRC_WIDTH: tl.constexpr,
    DST_WIDTH: tl.constexpr,
    BATCH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LOOPS: tl.constexpr,
):
    """Copy elements [page, row, col]. Strides are bytes.

    SRC_WIDTH is above ELEMENT_BYTES only where `src_col` is ELEMENT_BYTES, DST_WIDTH only where
    `dst_row` is; each divides its side's other addresses and the length of its fast axis.
    """
    element: tl.constexpr = (
        tl.int64
        if ELEMENT_BYTES == 8
        else tl.int32
        if ELEMENT_BYTES == 4
        else tl.int16
        if ELEMENT_BYTES == 2
        else tl.int8
    )
    SRC_VECTOR: tl.constexpr = SRC_WIDTH // ELEMENT_BYTES
    DST_VECTOR: tl.constexpr = DST_WIDTH // ELEMENT_BYTES
    dst_elements = tl.multiple_of(dst_ptr.to(tl.pointer_type(element)), DST_WIDTH)
    src_elements = tl.multiple_of(src_ptr.to(tl.pointer_type(element)), SRC_WIDTH)
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        rest, tile_col = peel(tl.cast(tile, tl.int64), col_tiles, col_mul, col_shift)
        tile_page, tile_row = peel(rest, row_tiles, row_mul, row_shift)
        page = tile_page * BATCH + tl.arange(0, BATCH)
        is_page = page < num_pages
        block = page
        src_bytes = tl.zeros_like(page)
        dst_bytes = tl.zeros_like(page)
        if LOOPS > 0:
            block, at = peel(block, count0, mul0, shift0)
            src_bytes += at * src0
            dst_bytes += at * dst0
        if LOOPS > 1:
            block, at = peel(block, count1, mul1, shift1)
            src_bytes += at * src1
            dst_bytes += at * dst1
        if LOOPS > 2:
            block, at = peel(block, count2, mul2, shift2)
            src_bytes += at * src2
            dst_bytes += at * dst2
        if LOOPS > 3:
            block, at = peel(block, count3, mul3, shift3)
            src_bytes += at * src3
            dst_bytes += at * dst3
        src_bytes += tl.load(src_offsets_ptr + block, mask=is_page, other=0)
        dst_bytes += tl.load(dst_offsets_ptr + block, mask=is_page, other=0)

        row = tile_row.to(tl.int32) * ROWS + tl.arange(0, ROWS)
        col = tile_col.to(tl.int32) * COLS + tl.arange(0, COLS)
        is_row = row < num_rows // DST_VECTOR * DST_VECTOR
        is_col = col < num_cols // SRC_VECTOR * SRC_VECTOR
        mask = is_page[:, None, None] & is_row[None, :, None] & is_col[None, None, :]

        src_lines = src_bytes[:, None] + row.to(tl.int64)[None, :] * src_row
        src_at = (src_lines // SRC_WIDTH * SRC_VECTOR)[:, :, None]
        if SRC_VECTOR > 1:
            src_at += col[None, None, :]
        else:
            src_at += (col.to(tl.int64) * (src_col // ELEMENT_BYTES))[None, None, :]
        values = tl.load(src_elements + src_at, mask=mask)

        dst_lines = dst_bytes[:, None] + col.to(tl.int64)[None, :] * dst_col
        dst_at = (dst_lines // DST_WIDTH * DST_VECTOR)[:, None, :]
        if DST_VECTOR > 1:
            dst_at += row[None, :, None]
        else:
            dst_at += (row.to(tl.int64) * (dst_row // ELEMENT_BYTES))[None, :, None]
        tl.store(dst_elements + dst_at, values, mask=mask)
