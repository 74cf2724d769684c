"""Conversions between bf16 and the quantised records of engines, made of the operations.

All take what the operations take and check it likewise; of a record with several parts, all parts
are checked before the first is written, overlaps apart.
"""

from typing import Final, NamedTuple

from torch import Tensor

from transload_kernels import arguments, operations
from transload_kernels.errors import BadArgument
from transload_kernels.formats import SCALE_BYTES, ElementType, Format, ScalePlace, ScaleType
from transload_kernels.implementation import Loop

BF16: Final = Format("bf16")


class TokenRecord(NamedTuple):
    """One token's latent in e4m3 with scales, and its rope in bf16, within a page of N tokens.

    Attributes:
        latent: Elements with scales.
        rope: Elements of bf16 after them.
        group_elements: That share a scale.
        scale: Type of the scales.
        token_bytes: From a token to the next.
        rope_at: Bytes from a token's start to its rope.
        scales_at: Bytes from a token's start to its scales, if they are within it; else 0.
        region_bytes: From a token's scales to the next token's, if all scales follow all of the
            page's tokens; else 0.
    """

    latent: int
    rope: int
    group_elements: int
    scale: ScaleType
    token_bytes: int
    rope_at: int
    scales_at: int
    region_bytes: int

    @property
    def bf16_bytes(self) -> int:
        """Of the same token in bf16."""
        return 2 * (self.latent + self.rope)

    def page_bytes(self, page_tokens: int) -> int:
        """Of a page, pads at its end apart."""
        return page_tokens * (self.token_bytes + self.region_bytes)

    def place(self, page_tokens: int) -> ScalePlace:
        """Where scales are, for the one loop over tokens."""
        group_stride = SCALE_BYTES[self.scale]
        if not self.region_bytes:
            return ScalePlace(self.scales_at, (self.token_bytes,), group_stride)
        return ScalePlace(page_tokens * self.token_bytes, (self.region_bytes,), group_stride)


FP8_DS_MLA: Final = TokenRecord(512, 64, 128, "f32", 656, 528, 512, 0)
"""656 bytes: 512 e4m3, 4 binary32 scales, 64 bf16 of rope; DeepSeek V3.2 in vLLM."""

DSV4: Final = TokenRecord(448, 64, 64, "ue8m0", 576, 448, 0, 8)
"""584 bytes: 448 e4m3 and 64 bf16 for each token, then 7 UE8M0 and a pad for each; DeepSeek V4."""

DSV41: Final = TokenRecord(512, 0, 32, "ue8m0", 512, 0, 0, 16)
"""528 bytes: 512 e4m3 for each token, then 16 UE8M0 for each; DeepSeek V4.1."""


def records_to_bf16(
    record: TokenRecord,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    page_tokens: int,
    num_tokens: int | None = None,
    *,
    implementation: str | None = None,
) -> None:
    """Pages of records to rows of bf16, latent then rope, one row behind the other.

    Args:
        record: What is in `src`.
        dst: Buffer that is written.
        src: Buffer that is read.
        dst_offsets: int64 `[n]`: first row of each page.
        src_offsets: int64 `[n]`: first byte of each page.
        page_tokens: Tokens that a page of `src` has room for.
        num_tokens: The first so many of each page; None: all.
        implementation: As in `operations`.
    """
    tokens = _check(
        record, dst, src, dst_offsets, src_offsets, page_tokens, num_tokens, is_read=True
    )
    loops = ((tokens, record.token_bytes, record.bf16_bytes),)
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        record.latent,
        loops,
        Format("e4m3", record.scale, record.group_elements),
        BF16,
        src_scales=record.place(page_tokens),
        implementation=implementation,
    )
    if record.rope:
        rope, latent_bytes = 2 * record.rope, 2 * record.latent
        dst_offsets, src_offsets = dst_offsets + latent_bytes, src_offsets + record.rope_at
        operations.relayout_rows(
            dst, src, dst_offsets, src_offsets, rope, loops, implementation=implementation
        )


def bf16_to_records(
    record: TokenRecord,
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    page_tokens: int,
    num_tokens: int | None = None,
    *,
    implementation: str | None = None,
) -> None:
    """The reverse of `records_to_bf16`; scales are made anew, pads are left as they are.

    Args:
        record: What `dst` is to hold.
        dst: Buffer that is written.
        src: Buffer that is read: rows of bf16.
        dst_offsets: int64 `[n]`: first byte of each page.
        src_offsets: int64 `[n]`: first row of each page.
        page_tokens: Tokens that a page of `dst` has room for.
        num_tokens: The first so many of each page; None: all.
        implementation: As in `operations`.
    """
    tokens = _check(
        record, src, dst, src_offsets, dst_offsets, page_tokens, num_tokens, is_read=False
    )
    loops = ((tokens, record.bf16_bytes, record.token_bytes),)
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        record.latent,
        loops,
        BF16,
        Format("e4m3", record.scale, record.group_elements),
        dst_scales=record.place(page_tokens),
        implementation=implementation,
    )
    if record.rope:
        rope, latent_bytes = 2 * record.rope, 2 * record.latent
        dst_offsets, src_offsets = dst_offsets + record.rope_at, src_offsets + latent_bytes
        operations.relayout_rows(
            dst, src, dst_offsets, src_offsets, rope, loops, implementation=implementation
        )


def fp8_to_bf16(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    num_elements: int,
    scale: float,
    loops: tuple[Loop, ...] = (),
    element: ElementType = "e4m3",
    *,
    implementation: str | None = None,
) -> None:
    """Rows of 8-bit floats with one scale for all to bf16; arguments as in `operations`."""
    fp8 = Format(element, "tensor", 0, scale)
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        num_elements,
        loops,
        fp8,
        BF16,
        implementation=implementation,
    )


def bf16_to_fp8(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    num_elements: int,
    scale: float,
    loops: tuple[Loop, ...] = (),
    element: ElementType = "e4m3",
    *,
    implementation: str | None = None,
) -> None:
    """Rows of bf16 to 8-bit floats with a given scale for all; too large values saturate."""
    fp8 = Format(element, "tensor", 0, scale)
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        num_elements,
        loops,
        BF16,
        fp8,
        implementation=implementation,
    )


def token_head_to_bf16(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    head_dim: int,
    loops: tuple[Loop, ...],
    element: ElementType,
    *,
    implementation: str | None = None,
) -> None:
    """Heads of tokens that each have their scale behind them, to bf16.

    A row of `src` is `head_dim` elements of `i8`, an 8-bit float or `u4`, then a binary32 scale
    (of `u4` with its zero point); `operations.convert_rows` has the other arguments. A rotation
    that was made before quantising is not undone.
    """
    of, place = _token_head(element, head_dim, [stride for _, stride, _ in loops])
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        head_dim,
        loops,
        of,
        BF16,
        src_scales=place,
        implementation=implementation,
    )


def bf16_to_token_head(
    dst: Tensor,
    src: Tensor,
    dst_offsets: Tensor,
    src_offsets: Tensor,
    head_dim: int,
    loops: tuple[Loop, ...],
    element: ElementType,
    *,
    implementation: str | None = None,
) -> None:
    """The reverse of `token_head_to_bf16`; scales are made anew, and nothing is rotated."""
    of, place = _token_head(element, head_dim, [stride for _, _, stride in loops])
    operations.convert_rows(
        dst,
        src,
        dst_offsets,
        src_offsets,
        head_dim,
        loops,
        BF16,
        of,
        dst_scales=place,
        implementation=implementation,
    )


def _token_head(
    element: ElementType, head_dim: int, strides: list[int]
) -> tuple[Format, ScalePlace]:
    of = Format(element, "f32_zero4" if element == "u4" else "f32", head_dim)
    arguments.check_format("element", of, head_dim)
    return of, ScalePlace(arguments.row_bytes_of(of, head_dim), tuple(strides), 0)


def _check(
    record: TokenRecord,
    rows: Tensor,
    pages: Tensor,
    row_offsets: Tensor,
    page_offsets: Tensor,
    page_tokens: int,
    num_tokens: int | None,
    *,
    is_read: bool,
) -> int:
    """Rows and pages lie in their buffers with all their parts; returns the tokens to convert."""
    page_tokens = arguments.whole("page_tokens", page_tokens, 1)
    tokens = page_tokens if num_tokens is None else arguments.whole("num_tokens", num_tokens, 0)
    if tokens > page_tokens:
        raise BadArgument(f"num_tokens: {tokens}, a page holds {page_tokens}")
    row_side, page_side = ("dst", "src") if is_read else ("src", "dst")
    for name, buffer, offsets, size in (
        (row_side, rows, row_offsets, tokens * record.bf16_bytes),
        (page_side, pages, page_offsets, record.page_bytes(page_tokens)),
    ):
        arguments.check_buffer(name, buffer)
        arguments.check_offsets(f"{name}_offsets", offsets, buffer)
        if tokens and len(offsets):
            arguments.check_inside(f"{name}_offsets", offsets, (), size, buffer)
    return tokens
