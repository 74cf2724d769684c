"""What the operations refuse, by the name of the argument, with nothing written."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest
import torch

from transload_kernels import (
    BadArgument,
    Format,
    KernelError,
    ScalePlace,
    convert_rows,
    copy_runs,
    digest_blocks,
    extents,
    relayout_rows,
    transpose_pages,
    zero_tail,
)

SIZE = 256
BIG = 1 << 63


def at(*offsets: int) -> torch.Tensor:
    return torch.tensor(offsets, dtype=torch.int64)


def memory(size: int = SIZE) -> torch.Tensor:
    return torch.arange(size).to(torch.uint8)


def good(call: Callable[..., Any]) -> dict[str, Any]:
    """Arguments that are accepted, with the buffers that are written first."""
    pair = {"dst_offsets": at(64, 0), "src_offsets": at(0, 64)}
    if call is copy_runs:
        return {"dst": [memory()], "src": [memory(), memory()], "runs": at(0, 0, 1, 8, 8)[None]}
    if call is relayout_rows:
        return {"dst": memory(), "src": memory(), **pair, "row_bytes": 8, "loops": ((2, 16, 32),)}
    if call is transpose_pages:
        tile = ((2, 8, 2), (4, 2, 4))
        return {"dst": memory(), "src": memory(), **pair, "element_bytes": 2, "tile": tile}
    if call is convert_rows:
        return {
            "dst": memory(),
            "src": memory(),
            **pair,
            "num_elements": 8,
            "loops": ((2, 16, 16),),
            "src_format": Format("bf16"),
            "dst_format": Format("e4m3", "f32", 4),
            "dst_scales": ScalePlace(8, (16,), 4),
        }
    if call is zero_tail:
        return {"dst": memory(), "offsets": at(0, 64), "row_bytes": 8, "loops": ((2, 16),)}
    return {"src": memory(), "offsets": at(0, 64), "row_bytes": 8, "loops": ((2, 16),)}


CALLS = (copy_runs, relayout_rows, transpose_pages, convert_rows, zero_tail, digest_blocks)
STRIDED = torch.empty(2 * SIZE, dtype=torch.uint8)[::2]
FP8 = Format("e4m3", "f32", 4)

BAD: list[tuple[Callable[..., Any], dict[str, Any], str]] = [
    (relayout_rows, {"dst": [1]}, "dst: expected a tensor, got list"),
    (relayout_rows, {"dst": memory().to(torch.int8)}, "dst: expected uint8, got torch.int8"),
    (relayout_rows, {"src": memory().view(16, 16)}, "src: expected flat memory, got shape"),
    (relayout_rows, {"src": STRIDED}, "src: expected flat memory, got shape [256], strides [2]"),
    (relayout_rows, {"src": memory().to("meta")}, "src: expected device cpu, got meta"),
    (relayout_rows, {"dst_offsets": [0]}, "dst_offsets: expected a tensor"),
    (relayout_rows, {"dst_offsets": at(0).int()}, "dst_offsets: expected int64, got torch.int32"),
    (relayout_rows, {"src_offsets": at(0)[None]}, "src_offsets: expected a flat list"),
    (relayout_rows, {"src_offsets": at(0, 1, 2, 3)[::2]}, "src_offsets: expected a flat list"),
    (relayout_rows, {"src_offsets": at(0)}, "src_offsets: expected 2, as many as"),
    (relayout_rows, {"src_offsets": at(0, 1).to("meta")}, "src_offsets: expected device cpu"),
    (relayout_rows, {"row_bytes": 0}, "row_bytes: expected 1..2**63-1, got 0"),
    (relayout_rows, {"row_bytes": 1.5}, "row_bytes: expected a whole number, got 1.5"),
    (relayout_rows, {"loops": ((-1, 8, 8),)}, "loops[0] count: expected 0.."),
    (relayout_rows, {"loops": ((2, 8),)}, "loops[0]: expected 3 numbers, got (2, 8)"),
    (relayout_rows, {"loops": ((2, BIG, 8),)}, "loops[0] source stride: expected"),
    (relayout_rows, {"loops": ((2, 8, -BIG - 1),)}, "loops[0] stride: expected"),
    (relayout_rows, {"loops": ((1 << 60, 0, 8),)}, "loops: 18446744073709551616 bytes in one"),
    (relayout_rows, {"src_offsets": at(0, -1)}, "src_offsets: bytes -1..24 are touched"),
    (relayout_rows, {"src_offsets": at(0, 233)}, "src_offsets: bytes 0..257 are touched, the"),
    (relayout_rows, {"dst_offsets": at(217, 0)}, "dst_offsets: bytes 0..257 are touched, the"),
    (relayout_rows, {"loops": ((2, 16, -65),)}, "dst_offsets: bytes -65..72 are touched"),
    (relayout_rows, {"loops": ((2, -1, 32),)}, "src_offsets: bytes -1..72 are touched"),
    (relayout_rows, {"loops": ((2, 1 << 62, 8),)}, "src_offsets: bytes 0..46116860184273879"),
    (relayout_rows, {"dst_offsets": at(64, 64)}, "dst_offsets: some bytes would be written twice"),
    (relayout_rows, {"dst_offsets": at(64, 33)}, "dst_offsets: some bytes would be written twice"),
    (relayout_rows, {"loops": ((2, 8, 7),)}, "dst_offsets: some bytes would be written twice"),
    (relayout_rows, {"loops": ((2, 8, 0),)}, "dst_offsets: some bytes would be written twice"),
    (relayout_rows, {"loops": ((3, 8, 64),)}, "dst_offsets: some bytes would be written twice"),
    (transpose_pages, {"element_bytes": 3}, "element_bytes: expected 1, 2, 4 or 8, got 3"),
    (transpose_pages, {"tile": ((2, 8, 2),)}, "tile: expected rows and columns, got 1 loops"),
    (transpose_pages, {"tile": ((2, 8, 2), (4, 2))}, "tile[1]: expected 3 numbers"),
    (transpose_pages, {"tile": ((2, 8, 2), (4, 2, 2))}, "dst_offsets: some bytes would be"),
    (transpose_pages, {"tile": ((2, 200, 2), (4, 2, 4))}, "src_offsets: bytes 0..272 are"),
    (copy_runs, {"dst": []}, "dst: expected one or more tensors"),
    (copy_runs, {"dst": memory()}, "dst: expected one or more tensors in a sequence"),
    (copy_runs, {"src": [memory(), memory().int()]}, "src[1]: expected uint8"),
    (copy_runs, {"runs": at(0, 0, 0, 0, 1)}, "runs: expected shape [n, 5] without gaps, got [5]"),
    (copy_runs, {"runs": at(0, 0, 0, 0, 1)[None].int()}, "runs: expected an int64 tensor"),
    (copy_runs, {"runs": at(0, 0, 0, 0, -1)[None]}, "runs: num_bytes -1 is below 0"),
    (copy_runs, {"runs": at(1, 0, 0, 0, 1)[None]}, "runs: dst buffer beyond 0..0"),
    (copy_runs, {"runs": at(0, 0, 2, 0, 1)[None]}, "runs: src buffer beyond 0..1"),
    (copy_runs, {"runs": at(0, 0, -1, 0, 1)[None]}, "runs: src buffer beyond 0..1"),
    (copy_runs, {"runs": at(0, 250, 0, 0, 7)[None]}, "runs: dst of row 0 is beyond its buffer"),
    (copy_runs, {"runs": at(0, 0, 0, -1, 7)[None]}, "runs: src of row 0 is beyond its buffer"),
    (copy_runs, {"runs": at(0, 1, 0, 0, BIG - 1)[None]}, "runs: dst of row 0 is beyond its"),
    (
        copy_runs,
        {"runs": torch.stack((at(0, 0, 0, 0, 9), at(0, 8, 0, 0, 9)))},
        "runs: some bytes would be written twice",
    ),
    (convert_rows, {"num_elements": 0}, "num_elements: expected 1.."),
    (convert_rows, {"src_format": Format("fp8")}, "src_format: unknown element 'fp8'"),  # type: ignore[arg-type]
    (convert_rows, {"dst_format": Format("e4m3", "f64", 4)}, "dst_format: unknown element"),  # type: ignore[arg-type]
    (convert_rows, {"src_format": Format("bf16", "f32", 8)}, "src_format: bf16 has scales"),
    (convert_rows, {"src_format": Format("u4")}, "src_format: u4 has scales ('f32_zero4',)"),
    (convert_rows, {"src_format": Format("i8", "f32_zero4", 8)}, "src_format: i8 has scales"),
    (convert_rows, {"dst_format": Format("e4m3", "f32", 0)}, "dst_format.group_elements: 0 does"),
    (convert_rows, {"dst_format": Format("e4m3", "f32", 3)}, "dst_format.group_elements: 3 does"),
    (convert_rows, {"src_format": Format("e4m3", "none", 4)}, "src_format.group_elements: scale"),
    (
        convert_rows,
        {"num_elements": 7, "src_format": Format("u4", "f32_zero4", 7)},
        "num_elements: u4 fills bytes in pairs, got 7",
    ),
    *(
        (convert_rows, {"src_format": Format("e4m3", "tensor", 0, value)}, "src_format.scale_value")
        for value in (0.0, -1.0, float("nan"), float("inf"), 1e39, 1e-46)
    ),
    (convert_rows, {"dst_scales": None}, "dst_scales: scale 'f32' needs place in the buffer"),
    (convert_rows, {"src_scales": ScalePlace(0, (1,), 1)}, "src_scales: scale 'none' has no"),
    (convert_rows, {"dst_scales": ScalePlace(8, (), 4)}, "dst_scales.strides: expected 1, one a"),
    (convert_rows, {"dst_scales": ScalePlace(BIG, (16,), 4)}, "dst_scales: expected"),
    (convert_rows, {"dst_scales": ScalePlace(-1, (16,), 4)}, "dst_scales: bytes -1..87 are"),
    (convert_rows, {"dst_scales": ScalePlace(180, (16,), 4)}, "dst_scales: bytes 180..268 are"),
    (convert_rows, {"dst_scales": ScalePlace(8, (16,), -80)}, "dst_scales: bytes -72..92 are"),
    (convert_rows, {"dst_scales": ScalePlace(7, (16,), 4)}, "dst_offsets: some bytes would be"),
    (convert_rows, {"dst_scales": ScalePlace(8, (16,), 3)}, "dst_offsets: some bytes would be"),
    (convert_rows, {"dst_scales": ScalePlace(8, (0,), 4)}, "dst_offsets: some bytes would be"),
    (
        convert_rows,
        {"src_format": FP8, "src_scales": ScalePlace(500, (0,), 0)},
        "src_scales: bytes 500..568 are touched",
    ),
    (convert_rows, {"src_offsets": at(0, 225)}, "src_offsets: bytes 0..257 are touched"),
    (zero_tail, {"row_bytes": -1}, "row_bytes: expected 1.."),
    (zero_tail, {"loops": ((2, 8, 8),)}, "loops[0]: expected 2 numbers"),
    (zero_tail, {"offsets": at(0, 240)}, "offsets: bytes 0..264 are touched"),
    (zero_tail, {"dst": memory().float()}, "dst: expected uint8"),
    (digest_blocks, {"offsets": at(-8)}, "offsets: bytes -8..16 are touched"),
    (digest_blocks, {"loops": ((-1, 8),)}, "loops[0] count: expected 0.."),
    (digest_blocks, {"src": memory().float()}, "src: expected uint8"),
    (digest_blocks, {"loops": ((1 << 62, 0),)}, "loops: "),
    (digest_blocks, {"implementation": "fpga"}, "implementation: expected one of"),
]


@pytest.mark.parametrize("call", CALLS)
def test_good_arguments_are_accepted(call: Callable[..., Any]) -> None:
    call(**good(call))


@pytest.mark.parametrize(("call", "changed", "message"), BAD)
def test_bad_arguments_are_named_and_nothing_is_written(
    call: Callable[..., Any], changed: dict[str, Any], message: str
) -> None:
    arguments = {**good(call), **changed}
    with pytest.raises(BadArgument) as caught:
        call(**arguments)
    assert str(caught.value).startswith(message)
    written = arguments.get("dst")
    for each in written if isinstance(written, list) else [written]:
        if isinstance(each, torch.Tensor) and each.dtype == torch.uint8:
            assert torch.equal(each.flatten(), memory())


def resized(tensor: torch.Tensor) -> torch.Tensor:
    tensor.untyped_storage().resize_(8)
    return tensor


@pytest.mark.parametrize(
    ("call", "changed", "name"),
    [
        (digest_blocks, {"src": resized(memory())}, "src"),
        (zero_tail, {"dst": resized(memory())}, "dst"),
        (zero_tail, {"offsets": resized(at(0, 64))}, "offsets"),
        (copy_runs, {"runs": resized(at(0, 0, 1, 8, 8)[None])}, "runs"),
    ],
)
def test_tensors_whose_memory_is_gone_are_refused(
    call: Callable[..., Any], changed: dict[str, Any], name: str
) -> None:
    with pytest.raises(BadArgument, match=f"{name}: its storage ends before it does"):
        call(**{**good(call), **changed})


@pytest.mark.parametrize("implementation", ["reference", "torch", "cpu"])
@pytest.mark.parametrize("call", CALLS)
def test_torchs_defaults_change_nothing(call: Callable[..., Any], implementation: str) -> None:
    plain, other = good(call), good(call)
    due = call(**plain, implementation=implementation)
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("meta"):
            came = call(**other, implementation=implementation)
    finally:
        torch.set_default_dtype(torch.float32)
    if due is not None:
        assert came.tolist() == due.tolist()
    for one, another in zip(plain.values(), other.values(), strict=True):
        if isinstance(one, torch.Tensor):
            assert torch.equal(one, another)


@pytest.mark.parametrize(
    ("value", "is_scale"),
    [
        (2.0**-150, False),
        (2.0**-150 * (1 + 2.0**-52), True),
        (2.0**-149, True),
        ((2 - 2.0**-24) * 2.0**127, False),
        ((2 - 2.0**-23) * 2.0**127, True),
        (10**400, False),
    ],
)
def test_scales_are_what_binary32_holds_flushed_or_not(value: float, is_scale: bool) -> None:
    scaled = {**good(convert_rows), "src_format": Format("e4m3", "tensor", 0, value)}
    torch.set_flush_denormal(True)
    try:
        with nullcontext() if is_scale else pytest.raises(BadArgument, match="scale_value"):
            convert_rows(**scaled)
    finally:
        torch.set_flush_denormal(False)


ONE = memory()


def share(call: Callable[..., Any], **changed: Any) -> dict[str, Any]:
    one = memory()
    buffers = {"dst": [one], "src": [one]} if call is copy_runs else {"dst": one, "src": one}
    return {**good(call), **buffers, **changed}


@pytest.mark.parametrize(
    ("call", "changed"),
    [
        (relayout_rows, {"dst_offsets": at(64, 7), "src_offsets": at(0, 128)}),
        (relayout_rows, {"loops": ((1, 0, 0),), "dst_offsets": at(8, 71)}),
        (transpose_pages, {}),
        (copy_runs, {"runs": at(0, 0, 0, 7, 8)[None]}),
        (convert_rows, {"dst_offsets": at(65, 0), "src_offsets": at(48, 128)}),
        # Only a scale is where something is read.
        (convert_rows, {"dst_scales": ScalePlace(136, (16,), 4), "src_offsets": at(128, 160)}),
    ],
)
def test_what_is_read_and_written_is_refused(
    call: Callable[..., Any], changed: dict[str, Any]
) -> None:
    arguments = share(call, **changed)
    with pytest.raises(BadArgument, match=r"^dst: some bytes would be read and written"):
        call(**arguments)
    written = arguments["dst"][0] if call is copy_runs else arguments["dst"]
    assert torch.equal(written, memory())


def test_what_would_take_too_long_to_tell_apart_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    one = memory()
    comb = ((20, 8, 8), (3, 2, 2))
    relayout_rows(one, one, at(0), at(1), 1, comb)
    monkeypatch.setattr(extents, "MAX_HULLS", 10)
    with pytest.raises(BadArgument, match=r"^dst: cannot be told from src in time; give disjoint"):
        relayout_rows(one, one, at(0), at(1), 1, comb)


def test_blocks_move_within_a_buffer_though_layers_interleave() -> None:
    """Block 3 to block 1 in a cache whose layers are outermost: hulls overlap, rows do not."""
    one = memory()
    relayout_rows(one, one, at(16), at(48), 16, ((4, 64, 64),))
    for layer in range(4):
        at_ = 64 * layer
        assert one[at_ + 16 : at_ + 32].tolist() == list(range(at_ + 48, at_ + 64))


def test_runs_move_within_a_buffer() -> None:
    one = memory()
    copy_runs([one], [one], at(0, 0, 0, 8, 8)[None])
    assert one[:9].tolist() == [*range(8, 16), 8]


def test_views_of_one_memory_are_compared_by_address() -> None:
    one = memory()
    relayout_rows(one[:128], one[128:], at(0), at(0), 128, ())
    assert one[:128].tolist() == list(range(128, 256))
    with pytest.raises(BadArgument, match=r"^dst: some bytes"):
        relayout_rows(one[:128], one[127:], at(0), at(0), 128, ())


def test_counts_of_0_and_no_offsets_touch_nothing() -> None:
    dst = memory()
    relayout_rows(dst, dst, at(1 << 40), at(-1), 8, ((0, 1, 1), (2, BIG - 1, 0)))
    relayout_rows(dst, dst, at(), at(), 8, ((2, 0, 0),))
    assert torch.equal(dst, memory())
    assert digest_blocks(dst, at(), 8).tolist() == []
    assert digest_blocks(dst, at(5, 6), 8, ((0, 1),)).tolist() == [0, 0]


def test_a_stride_that_is_never_taken_may_be_anything() -> None:
    dst = memory()
    relayout_rows(dst, memory(), at(0), at(8), 4, ((1, BIG - 1, -BIG),))
    assert dst[:4].tolist() == [8, 9, 10, 11]


def test_rows_backwards_and_interleaved_are_accepted() -> None:
    dst = torch.zeros(12, dtype=torch.uint8)
    relayout_rows(dst, memory(), at(8, 10), at(0, 100), 2, ((3, 2, -4),))
    assert dst.tolist() == [4, 5, 104, 105, 2, 3, 102, 103, 0, 1, 100, 101]


def test_unchecked_calls_do_not_look_at_offsets() -> None:
    dst = memory()
    relayout_rows(dst, memory(), at(0, 0), at(8, 8), 4, (), checked=False)
    assert dst[:4].tolist() == [8, 9, 10, 11]
    with pytest.raises(KernelError):
        relayout_rows(dst, memory().float(), at(0), at(0), 4, (), checked=False)
