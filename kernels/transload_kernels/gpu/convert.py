# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
# mypy: disable-error-code="valid-type"
"""The kernel of `convert_rows`: read, multiply, narrow and write in one pass.

A row is cut into *strips*: the group of the destination's inline scale if it has one, else of the
source's, else the whole row. A strip is a line of the tile, so that a group's peak is one
reduction; which strip of its row it is counts as loop 0.
"""

import triton
import triton.language as tl

from transload_kernels.gpu.indexing import divide, peel
from transload_kernels.gpu.numbers import (
    bits_of,
    clamp,
    decode,
    encode,
    known,
    least_power,
    nearest_integer,
    power,
)

SCALARS = (
    *("num_strips", "strip_elements", "num_tiles", "col_tiles", "col_mul", "col_shift"),
    *("src_value", "dst_value", "src_group_mul", "src_group_shift"),
    *("src_delta", "src_group_stride", "dst_delta"),
    *("count0", "mul0", "shift0", "src0", "dst0", "dst_scale0"),
    *(
        f"{field}{loop}"
        for loop in range(1, 4)
        for field in ("count", "mul", "shift", "src", "dst", "src_scale", "dst_scale")
    ),
)


@triton.jit
def load_bits(ptr, at, mask, BYTES: tl.constexpr, IS_ALIGNED: tl.constexpr = False):
    """Little-endian unsigned numbers of BYTES bytes, as uint32; IS_ALIGNED: at a multiple."""
    if IS_ALIGNED and BYTES == 4:
        return tl.load(ptr.to(tl.pointer_type(tl.uint32)) + at // 4, mask=mask, other=0)
    else:
        ptr = ptr.to(tl.pointer_type(tl.uint8))
        bits = tl.load(ptr + at, mask=mask, other=0).to(tl.uint32)
        for byte in tl.static_range(1, BYTES):
            bits |= tl.load(ptr + at + byte, mask=mask, other=0).to(tl.uint32) << (8 * byte)
        return bits


@triton.jit
def store_bits(ptr, at, bits, mask, BYTES: tl.constexpr, IS_ALIGNED: tl.constexpr = False):
    """The other way round."""
    if IS_ALIGNED and BYTES == 4:
        tl.store(ptr.to(tl.pointer_type(tl.uint32)) + at // 4, bits, mask=mask)
    else:
        ptr = ptr.to(tl.pointer_type(tl.uint8))
        for byte in tl.static_range(BYTES):
            tl.store(ptr + at + byte, ((bits >> (8 * byte)) & 0xFF).to(tl.uint8), mask=mask)


@triton.jit
def scaled(values, scale, SCALE: tl.constexpr):
    """Elements times their stored scale; both are of one shape."""
    if SCALE == "ue8m0":
        return values * power(scale)
    elif SCALE == "f32":
        return values * scale.to(tl.float32, bitcast=True)
    else:
        tl.static_assert(SCALE == "f32_zero4")
        zero = (scale & 15).to(tl.float32)
        return (values - zero) * (scale & 0xFFFFFFF0).to(tl.float32, bitcast=True)


@triton.jit
def make_scale(values, ELEMENT: tl.constexpr, SCALE: tl.constexpr):
    """A scale for each line of values: its factor, its zero point, and its stored bits."""
    sure = known(values)
    zero = tl.zeros((values.shape[0],), dtype=tl.float32)
    if SCALE == "f32_zero4":
        low = tl.min(sure, axis=1)
        high = tl.max(sure, axis=1)
        low = tl.where(low > 0.0, 0.0, low)
        high = tl.where(high < 0.0, 0.0, high)
        span = tl.div_rn(high, zero + 15.0) - tl.div_rn(low, zero + 15.0)
        factor = (bits_of(span) & 0xFFFFFFF0).to(tl.float32, bitcast=True)
        factor = tl.where(factor == 0.0, 1.0, factor)
        zero = nearest_integer(clamp(tl.div_rn(-low, factor), 0.0, 15.0))
        stored = bits_of(factor) | zero.to(tl.int32).to(tl.uint32, bitcast=True)
    else:
        peak = tl.max(tl.abs(sure), axis=1)
        LARGEST: tl.constexpr = (
            0x43E00000
            if ELEMENT == "e4m3"
            else 0x47600000
            if ELEMENT == "e5m2" or ELEMENT == "e5m2fnuz"
            else 0x43700000
            if ELEMENT == "e4m3fnuz"
            else 0x42FE0000
        )
        if SCALE == "ue8m0":
            stored = least_power(peak, LARGEST)
            factor = power(stored)
        else:
            most = tl.full((), LARGEST, tl.uint32).to(tl.float32, bitcast=True)
            factor = tl.div_rn(peak, zero + most)
            factor = tl.where(factor == 0.0, 1.0, factor)
            stored = bits_of(factor)
    return factor, zero, stored


@triton.jit(do_not_specialize=("dst_ptr", "src_ptr", *SCALARS))
def convert_kernel(
    dst_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    src_ptr: "*fp32",  # noqa: F722 - Triton's name of a type
    src_offsets_ptr,
    dst_offsets_ptr,
    src_scale_offsets_ptr,
    dst_scale_offsets_ptr,
    num_strips: tl.int64,
    strip_elements: tl.int32,
    num_tiles: tl.int32,
    col_tiles: tl.uint32,
    col_mul: tl.uint32,
    col_shift: tl.uint32,
    src_value: tl.float32,
    dst_value: tl.float32,
    src_group_mul: tl.uint32,
    src_group_shift: tl.uint32,
    src_delta: tl.int64,
    src_group_stride: tl.int64,
    dst_delta: tl.int64,
    count0: tl.uint32,
    mul0: tl.uint32,
    shift0: tl.uint32,
    src0: tl.int64,
    dst0: tl.int64,
    dst_scale0: tl.int64,
    count1: tl.uint32,
    mul1: tl.uint32,
    shift1: tl.uint32,
    src1: tl.int64,
    dst1: tl.int64,
    src_scale1: tl.int64,
    dst_scale1: tl.int64,
    count2: tl.uint32,
    mul2: tl.uint32,
    shift2: tl.uint32,
    src2: tl.int64,
    dst2: tl.int64,
    src_scale2: tl.int64,
    dst_scale2: tl.int64,
    count3: tl.uint32,
    mul3: tl.uint32,
    shift3: tl.uint32,
    src3: tl.int64,
    dst3: tl.int64,
    src_scale3: tl.int64,
    dst_scale3: tl.int64,
    SRC: tl.constexpr,
    DST: tl.constexpr,
    SRC_SCALE: tl.constexpr,
    DST_SCALE: tl.constexpr,
    SRC_BYTES: tl.constexpr,
    DST_BYTES: tl.constexpr,
    SRC_WIDTH: tl.constexpr,
    DST_WIDTH: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    LOOPS: tl.constexpr,
    HAS_ONE_SCALE: tl.constexpr,
    ALIGNED_SCALES: tl.constexpr,
    IS_SPLIT: tl.constexpr,
):
    """Convert strips. Strides and deltas are bytes; BYTES are of an element, 1 for `u4`.

    WIDTH divides its side's addresses and the bytes of a strip; below BYTES, elements are read or
    written byte by byte. `src_group` elements of a row share one scale; a strip has one scale
    where HAS_ONE_SCALE. ALIGNED_SCALES: those of 4 bytes, on both sides, lie at multiples of 4.
    IS_SPLIT: strips of `u4` begin within bytes, so `src0` is 0.
    """
    for tile in range(tl.program_id(0), num_tiles, tl.num_programs(0)):
        tile_row, tile_col = peel(tl.cast(tile, tl.int64), col_tiles, col_mul, col_shift)
        strip = tile_row * ROWS + tl.arange(0, ROWS)
        is_strip = strip < num_strips
        block, strip_of_row = peel(strip, count0, mul0, shift0)
        src_bytes = strip_of_row * src0
        dst_bytes = strip_of_row * dst0
        dst_scales = strip_of_row * dst_scale0
        src_scales = tl.zeros_like(strip)
        if LOOPS > 1:
            block, at = peel(block, count1, mul1, shift1)
            src_bytes += at * src1
            dst_bytes += at * dst1
            src_scales += at * src_scale1
            dst_scales += at * dst_scale1
        if LOOPS > 2:
            block, at = peel(block, count2, mul2, shift2)
            src_bytes += at * src2
            dst_bytes += at * dst2
            src_scales += at * src_scale2
            dst_scales += at * dst_scale2
        if LOOPS > 3:
            block, at = peel(block, count3, mul3, shift3)
            src_bytes += at * src3
            dst_bytes += at * dst3
            src_scales += at * src_scale3
            dst_scales += at * dst_scale3
        src_bytes += tl.load(src_offsets_ptr + block, mask=is_strip, other=0)
        dst_bytes += tl.load(dst_offsets_ptr + block, mask=is_strip, other=0)
        if SRC_SCALE == "f32" or SRC_SCALE == "ue8m0" or SRC_SCALE == "f32_zero4":
            src_scales += tl.load(src_scale_offsets_ptr + block, mask=is_strip, other=0)
            src_scales += src_delta
        if DST_SCALE == "f32" or DST_SCALE == "ue8m0" or DST_SCALE == "f32_zero4":
            dst_scales += tl.load(dst_scale_offsets_ptr + block, mask=is_strip, other=0)
            dst_scales += dst_delta

        col = (tile_col * COLS).to(tl.int32) + tl.arange(0, COLS)[None, :]
        is_element = is_strip[:, None] & (col < strip_elements)
        if IS_SPLIT:
            element = (strip_of_row * strip_elements)[:, None] + col
            raw = load_bits(src_ptr, src_bytes[:, None] + element // 2, is_element, 1)
            raw = (raw >> ((element & 1) * 4).to(tl.uint32)) & 15
        else:
            if SRC == "u4":
                src_col = (tile_col * (COLS // 2)).to(tl.int32) + tl.arange(0, COLS // 2)[None, :]
                num_stored = strip_elements // 2
            else:
                src_col = col
                num_stored = strip_elements
            if SRC_WIDTH >= SRC_BYTES:
                src_type: tl.constexpr = (
                    tl.uint32 if SRC_BYTES == 4 else tl.uint16 if SRC_BYTES == 2 else tl.uint8
                )
                SRC_VECTOR: tl.constexpr = SRC_WIDTH // SRC_BYTES
                in_src = is_strip[:, None] & (src_col < num_stored // SRC_VECTOR * SRC_VECTOR)
                src = tl.multiple_of(src_ptr.to(tl.pointer_type(src_type)), SRC_WIDTH)
                src_at = (src_bytes // SRC_WIDTH * SRC_VECTOR)[:, None] + src_col
                raw = tl.load(src + src_at, mask=in_src, other=0).to(tl.uint32)
            else:
                in_src = is_strip[:, None] & (src_col < num_stored)
                raw = load_bits(
                    src_ptr, src_bytes[:, None] + src_col * SRC_BYTES, in_src, SRC_BYTES
                )
            if SRC == "u4":
                raw = tl.interleave(raw & 15, raw >> 4)

        values = decode(raw, SRC)
        if SRC_SCALE == "tensor":
            values *= src_value
        elif SRC_SCALE != "none":
            SRC_SCALE_BYTES: tl.constexpr = 1 if SRC_SCALE == "ue8m0" else 4
            if HAS_ONE_SCALE:
                group = divide(strip_of_row * strip_elements, src_group_mul, src_group_shift)
                scale_at = src_scales + group * src_group_stride
                bits = load_bits(src_ptr, scale_at, is_strip, SRC_SCALE_BYTES, ALIGNED_SCALES)
                scale = tl.broadcast_to(bits[:, None], (ROWS, COLS))
            else:
                element = (strip_of_row * strip_elements)[:, None] + col
                group = divide(element, src_group_mul, src_group_shift)
                scale_at = src_scales[:, None] + group * src_group_stride
                scale = load_bits(src_ptr, scale_at, is_element, SRC_SCALE_BYTES, ALIGNED_SCALES)
            values = scaled(values, scale, SRC_SCALE)

        if DST_SCALE == "tensor":
            values = tl.div_rn(values, tl.zeros_like(values) + dst_value)
        elif DST_SCALE != "none":
            inside = tl.where(is_element, values, 0.0)
            factor, zero, stored = make_scale(inside, DST, DST_SCALE)
            values = tl.div_rn(values, tl.zeros_like(values) + factor[:, None])
            if DST_SCALE == "f32_zero4":
                values = clamp(tl.where(values != values, 0.0, values), -64.0, 64.0)
                values = nearest_integer(values) + zero[:, None]
            DST_SCALE_BYTES: tl.constexpr = 1 if DST_SCALE == "ue8m0" else 4
            store_bits(dst_ptr, dst_scales, stored, is_strip, DST_SCALE_BYTES, ALIGNED_SCALES)

        bits = encode(values, DST)
        if DST == "u4":
            low, high = tl.split(tl.reshape(bits, (ROWS, COLS // 2, 2)))
            bits = low | (high << 4)
            dst_col = (tile_col * (COLS // 2)).to(tl.int32) + tl.arange(0, COLS // 2)[None, :]
            num_stored = strip_elements // 2
        else:
            dst_col = col
            num_stored = strip_elements
        if DST_WIDTH >= DST_BYTES:
            dst_type: tl.constexpr = (
                tl.uint32 if DST_BYTES == 4 else tl.uint16 if DST_BYTES == 2 else tl.uint8
            )
            DST_VECTOR: tl.constexpr = DST_WIDTH // DST_BYTES
            in_dst = is_strip[:, None] & (dst_col < num_stored // DST_VECTOR * DST_VECTOR)
            dst = tl.multiple_of(dst_ptr.to(tl.pointer_type(dst_type)), DST_WIDTH)
            dst_at = (dst_bytes // DST_WIDTH * DST_VECTOR)[:, None] + dst_col
            tl.store(dst + dst_at, bits.to(dst_type), mask=in_dst)
        else:
            in_dst = is_strip[:, None] & (dst_col < num_stored)
            dst_at = dst_bytes[:, None] + dst_col * DST_BYTES
            store_bits(dst_ptr, dst_at, bits, in_dst, DST_BYTES)
