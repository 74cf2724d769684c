"""The specification against literals, numpy, and the descriptor's own arithmetic."""

from __future__ import annotations

import struct

import numpy as np
import pytest
import torch

from support.kernel_numbers import awkward_values
from transload_abi import oracle_numbers
from transload_kernels.formats import ElementType, Format, ScalePlace
from transload_kernels.implementation import Implementation
from transload_kernels.reference import ReferenceKernels, digest, numbers, places, scales

KERNELS: Implementation = ReferenceKernels()
NAN = float("nan")
INF = float("inf")
ZERO = torch.tensor([0])


def bytes_of(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.uint8)


def floats(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float32)


def element(value: float, of: ElementType) -> int:
    """The pattern that a value is written as."""
    return int.from_bytes(bytes(numbers.encode(floats(value), of).tolist()), "little")


@pytest.mark.parametrize(
    ("of", "pattern", "value"),
    [
        ("e4m3", 0x01, 2.0**-9),
        ("e4m3", 0x08, 2.0**-6),
        ("e4m3", 0x38, 1.0),
        ("e4m3", 0x7E, 448.0),
        ("e4m3", 0xB9, -1.125),
        ("e5m2", 0x01, 2.0**-16),
        ("e5m2", 0x3C, 1.0),
        ("e5m2", 0x7B, 57344.0),
        ("e4m3fnuz", 0x01, 2.0**-10),
        ("e4m3fnuz", 0x40, 1.0),
        ("e4m3fnuz", 0x7F, 240.0),
        ("e5m2fnuz", 0x01, 2.0**-17),
        ("e5m2fnuz", 0x40, 1.0),
        ("e5m2fnuz", 0xFF, -57344.0),
        ("bf16", 0x3F80, 1.0),
        ("bf16", 0x0001, 2.0**-133),
        ("f16", 0x0001, 2.0**-24),
        ("f16", 0x7BFF, 65504.0),
        ("f32", 0x00000001, 2.0**-149),
        ("i8", 0x80, -128.0),
    ],
)
def test_patterns_are_these_values(of: ElementType, pattern: int, value: float) -> None:
    size = 4 if of == "f32" else 2 if of in ("bf16", "f16") else 1
    raw = bytes_of(*pattern.to_bytes(size, "little"))
    assert numbers.decode(raw, of).tolist() == [value]
    assert element(value, of) == pattern


@pytest.mark.parametrize(
    ("of", "value", "pattern"),
    [
        # Ties go to the even pattern, from above and from below.
        ("e4m3", 1.0625, 0x38),
        ("e4m3", 1.1875, 0x3A),
        ("e4m3", 2.0**-10, 0x00),
        ("e4m3", 3 * 2.0**-10, 0x02),
        ("bf16", 1.00390625, 0x3F80),
        ("bf16", 1.01171875, 0x3F82),
        ("i8", 2.5, 0x02),
        ("i8", -3.5, 0xFC),
        # Too large.
        ("e4m3", 449.0, 0x7E),
        ("e4m3", 1e9, 0x7E),
        ("e4m3", -INF, 0xFE),
        ("e5m2", 1e9, 0x7B),
        ("e5m2", -INF, 0xFB),
        ("e4m3fnuz", INF, 0x7F),
        ("e5m2fnuz", 61440.0, 0x7F),
        ("e5m2fnuz", -INF, 0xFF),
        ("i8", 1e9, 0x7F),
        ("i8", -INF, 0x80),
        ("f16", 65520.0, 0x7C00),
        ("bf16", 3.4e38, 0x7F80),
        ("f32", -INF, 0xFF800000),
        # No number.
        ("e4m3", NAN, 0x7F),
        ("e4m3", -NAN, 0x7F),
        ("e5m2", -NAN, 0x7F),
        ("e4m3fnuz", NAN, 0x80),
        ("e5m2fnuz", -NAN, 0x80),
        ("i8", NAN, 0x00),
        ("f16", -NAN, 0x7E00),
        ("bf16", -NAN, 0x7FC0),
        ("f32", -NAN, 0x7FC00000),
        # Minus zero.
        ("e4m3", -0.0, 0x80),
        ("e4m3fnuz", -0.0, 0x00),
        ("e4m3fnuz", -1e-9, 0x00),
        ("e5m2fnuz", -0.0, 0x00),
        ("e5m2fnuz", -(2.0**-18), 0x00),
        ("bf16", -0.0, 0x8000),
    ],
)
def test_values_are_written_as_these_patterns(of: ElementType, value: float, pattern: int) -> None:
    assert element(value, of) == pattern


@pytest.mark.parametrize("of", ["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz", "i8", "f16", "bf16", "f32"])
def test_numbers_are_those_of_the_descriptors_oracle(of: ElementType) -> None:
    values = awkward_values()
    values = values[~values.isnan()]
    due = oracle_numbers.encode(values.numpy(), of)
    came = numbers.encode(values, of).numpy().view(due.dtype)
    np.testing.assert_array_equal(came, due)
    back = numbers.decode(torch.from_numpy(due.view(np.uint8)), of).numpy()
    np.testing.assert_array_equal(back, oracle_numbers.decode(due, of))


def test_two_u4_share_a_byte_the_even_one_below() -> None:
    assert numbers.decode(bytes_of(0x21, 0xF0), "u4").tolist() == [1, 2, 0, 15]
    assert numbers.encode(floats(1, 2.5, -3, 99), "u4").tolist() == [0x21, 0xF0]


def f32_bits(value: float) -> int:
    return int(struct.unpack("<I", struct.pack("<f", value))[0])


@pytest.mark.parametrize(
    ("of", "values", "stored"),
    [
        (Format("e4m3", "f32", 2), (-896.0, 3.0), f32_bits(2.0)),
        (Format("i8", "f32", 2), (1.0, 254.0), f32_bits(2.0)),
        (Format("e4m3", "f32", 2), (0.0, -0.0), f32_bits(1.0)),
        (Format("e4m3", "f32", 2), (NAN, 448.0), f32_bits(1.0)),
        (Format("e4m3", "f32", 2), (NAN, NAN), f32_bits(1.0)),
        # A peak so small that its scale rounds to zero.
        (Format("e4m3", "f32", 2), (2.0**-149, 0.0), f32_bits(1.0)),
        (Format("e4m3", "ue8m0", 2), (448.0, 1.0), 127),
        (Format("e4m3", "ue8m0", 2), (448.5, 1.0), 128),
        (Format("e4m3", "ue8m0", 2), (224.0, 1.0), 126),
        (Format("e4m3", "ue8m0", 2), (0.0, 0.0), 127),
        (Format("e4m3", "ue8m0", 2), (2.0**-149, 0.0), 0),
        (Format("e4m3", "ue8m0", 2), (INF, 0.0), 247),
        (Format("e4m3fnuz", "ue8m0", 2), (241.0, 1.0), 128),
        (Format("e5m2fnuz", "ue8m0", 2), (57345.0, 1.0), 128),
        (Format("i8", "ue8m0", 2), (127.0, 1.0), 127),
        # Zero to 15 in steps of 1: nothing below zero. Then the zero point is 5, and 15.
        (Format("u4", "f32_zero4", 2), (15.0, 3.0), f32_bits(1.0)),
        (Format("u4", "f32_zero4", 2), (-5.0, 10.0), f32_bits(1.0) + 5),
        (Format("u4", "f32_zero4", 2), (-15.0, -3.0), f32_bits(1.0) + 15),
        (Format("u4", "f32_zero4", 2), (0.0, 0.0), f32_bits(1.0)),
        # A third is 3EAAAAAB; its lowest four bits are the zero point's.
        (Format("u4", "f32_zero4", 2), (5.0, 0.0), 0x3EAAAAA0),
        (Format("u4", "f32_zero4", 2), (-5.0, NAN), 0x3EAAAAAF),
    ],
)
def test_scales_are_made_like_this(of: Format, values: tuple[float, ...], stored: int) -> None:
    made = scales.make(floats(*values)[None], of)
    assert int.from_bytes(bytes(made.raw.flatten().tolist()), "little") == stored


@pytest.mark.parametrize(
    ("scale", "stored", "factor"),
    [
        ("ue8m0", (127,), 1.0),
        ("ue8m0", (0,), 2.0**-127),
        ("ue8m0", (254,), 2.0**127),
        ("f32", (0, 0, 0, 0x40), 2.0),
    ],
)
def test_stored_scales_are_these_factors(
    scale: str, stored: tuple[int, ...], factor: float
) -> None:
    of = Format("e4m3", scale, 2)  # type: ignore[arg-type]
    assert scales.read(bytes_of(*stored)[None], of).factors.tolist() == [factor]


def test_the_scale_255_is_no_number() -> None:
    of = Format("e4m3", "ue8m0", 2)
    assert scales.read(bytes_of(255)[None], of).factors.isnan().all()


def test_a_zero_point_is_taken_off_before_the_scale() -> None:
    of = Format("u4", "f32_zero4", 4)
    raw = bytes_of(*struct.pack("<I", f32_bits(0.5) | 5))[None]
    values = scales.to_values(bytes_of(0x50, 0xF6), scales.read(raw, of), of)
    assert values.tolist() == [[-2.5, 0.0, 0.5, 5.0]]


def test_a_row_is_scaled_by_groups() -> None:
    src = torch.cat((bytes_of(0x38, 0x40, 0x38, 0xB8), floats(3.0, 0.5).view(torch.uint8)))
    dst = torch.zeros(16, dtype=torch.uint8)
    of = Format("e4m3", "f32", 2)
    KERNELS.convert_rows(dst, src, ZERO, ZERO, 4, (), of, Format("f32"), ScalePlace(4, (), 4), None)
    assert dst.view(torch.float32).tolist() == [3.0, 6.0, 0.5, -0.5]


def test_a_scale_for_the_tensor_divides_what_is_written() -> None:
    dst = torch.zeros(2, dtype=torch.uint8)
    src = floats(3.0, -1e9).view(torch.uint8)
    of = Format("e4m3", "tensor", 0, 3.0)
    KERNELS.convert_rows(dst, src, ZERO, ZERO, 2, (), Format("f32"), of, None, None)
    assert dst.tolist() == [0x38, 0xFE]


def test_loops_have_an_index_of_all_counts_and_none_of_0() -> None:
    assert list(places.steps((2, 3), (10, 1), (0, -1)))[3:] == [(10, 0), (11, -1), (12, -2)]
    assert list(places.steps((), ())) == [(0,)]
    assert list(places.steps((3, 0), (1, 1))) == []


def test_rows_turn_as_numpy_turns_axes() -> None:
    rng = np.random.default_rng(1)
    nhd = rng.integers(0, 256, (3, 5, 2, 6), np.uint8)
    dst = torch.zeros(nhd.size, dtype=torch.uint8)
    block = 5 * 2 * 6
    offsets = torch.tensor([0, block, 2 * block])
    src = torch.from_numpy(nhd.reshape(-1))
    loops = ((5, 12, 6), (2, 6, 30))
    KERNELS.relayout_rows(dst, src, offsets, offsets.flip(0), 6, loops)
    due = nhd[::-1].transpose(0, 2, 1, 3)
    np.testing.assert_array_equal(dst.numpy().reshape(due.shape), due)


def test_tiles_turn_as_numpy_turns_axes() -> None:
    pages = np.arange(2 * 3 * 4, dtype=np.uint16).reshape(2, 3, 4)
    src = torch.from_numpy(pages.reshape(-1).view(np.uint8))
    dst = torch.zeros_like(src)
    offsets = torch.tensor([0, 24])
    KERNELS.transpose_pages(dst, src, offsets, offsets, 2, ((3, 8, 2), (4, 2, 6)), ())
    due = pages.transpose(0, 2, 1)
    np.testing.assert_array_equal(dst.numpy().view(np.uint16).reshape(due.shape), due)


def test_runs_name_buffers_on_both_sides() -> None:
    dst = [bytes_of(0, 0, 0), bytes_of(9, 9)]
    src = [bytes_of(1, 2, 3), bytes_of(4, 5)]
    KERNELS.copy_runs(dst, src, torch.tensor([[0, 1, 0, 1, 2], [1, 0, 1, 1, 1]]))
    assert [one.tolist() for one in dst] == [[0, 2, 3], [5, 9]]


def test_zeros_are_written_over_rows_only() -> None:
    dst = torch.full((10,), 7, dtype=torch.uint8)
    KERNELS.zero_tail(dst, torch.tensor([1]), 2, ((2, 5),))
    assert dst.tolist() == [7, 0, 0, 7, 7, 7, 0, 0, 7, 7]


@pytest.mark.parametrize(
    ("block", "number"),
    [
        (b"", 0),
        (b"\0", 0xA482243C16DFB016),
        (b"abcdefghij", 0x7AA80A2D6000A0C6),
    ],
)
def test_digests_are_these_numbers(block: bytes, number: int) -> None:
    assert digest.digest(block) == number
    if block:
        src = torch.tensor(list(block), dtype=torch.uint8)
        came = KERNELS.digest_blocks(src, ZERO, len(block), ())
        assert came.tolist() == [digest.signed(number)]


def test_digests_depend_on_bytes_their_order_and_length_alone() -> None:
    src = torch.arange(48, dtype=torch.uint8)
    whole = KERNELS.digest_blocks(src, ZERO, 48, ())
    in_rows = KERNELS.digest_blocks(src, ZERO, 6, ((2, 24), (4, 6)))
    turned = KERNELS.digest_blocks(src, ZERO, 6, ((4, 6), (2, 24)))
    longer = KERNELS.digest_blocks(
        torch.cat((src, torch.zeros(8, dtype=torch.uint8))), ZERO, 56, ()
    )
    assert whole.tolist() == in_rows.tolist()
    assert len({*whole.tolist(), *turned.tolist(), *longer.tolist()}) == 3


def test_any_change_of_one_word_changes_the_digest() -> None:
    block = bytes(range(40))
    changed = {
        digest.digest(block[:at] + bytes([block[at] ^ 1 << bit]) + block[at + 1 :])
        for at in range(40)
        for bit in range(8)
    }
    assert len(changed) == 320
    assert digest.digest(block) not in changed
