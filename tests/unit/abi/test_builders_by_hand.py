"""Pieces for a descriptor written by hand, SGLang's buffers, and rotary parameters."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from support import abi_placements
from support.abi_addresses import bit_of
from support.abi_placements import SHAPE, Shape
from transload_abi.builders import by_hand, rope_parameters, sglang
from transload_abi.canonical import canonical
from transload_abi.errors import Contradiction, DescriptorError, MalformedDescriptor, UnknownPart
from transload_abi.types import Model, Rope

MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"))


def test_terms_are_strides_in_elements() -> None:
    assert by_hand.terms(16, H=(8, 2048), N=(16, 128), D=(128, 1)) == (
        ("H", 1, 8, 32768),
        ("N", 1, 16, 2048),
        ("D", 1, 128, 16),
    )


def test_an_axis_may_have_several_digits() -> None:
    assert by_hand.terms(8, D=[(16, 1), (4, 512), (2, 9)], N=(32, 16), G=(4, 3)) == (
        ("N", 1, 32, 128),
        ("D", 1, 16, 8),
        ("D", 16, 4, 4096),
        ("D", 64, 2, 72),
        ("G", 1, 4, 24),
    )


def test_an_axis_of_one_has_no_term() -> None:
    assert by_hand.terms(16, H=(1, 5), D=[(1, 7), (4, 2)]) == (("D", 1, 4, 32),)


def test_a_roles_shape_is_what_its_digits_come_to() -> None:
    found = by_hand.role("k", "e4m3", first=3, place=1, H=(1, 0), N=(4, 64), D=[(8, 1), (2, 9)])
    assert (found.bits, found.base_bits, found.place) == (8, 24, 1)
    assert found.shape == {"H": 1, "N": 4, "D": 16}
    assert found.terms == (("N", 1, 4, 512), ("D", 1, 8, 8), ("D", 8, 2, 72))
    with pytest.raises(UnknownPart, match="dtype: no dtype 'e3m4'"):
        by_hand.role("k", "e3m4", N=(1, 0))


@pytest.mark.parametrize(
    ("outermost", "block_stride", "layer_stride", "block_bytes"),
    [("layers", 100, 700, 0), ("blocks", 300, 100, 300)],
)
def test_a_packed_pool_has_no_gaps(
    outermost: Literal["layers", "blocks"], block_stride: int, layer_stride: int, block_bytes: int
) -> None:
    pool, place = by_hand.packed_pool(
        "p", num_layers=3, num_blocks=7, page_bytes=100, outermost=outermost, memory="host", align=8
    )
    assert (pool.id, pool.num_bytes, pool.num_blocks, pool.block_bytes) == (
        "p",
        2100,
        7,
        block_bytes,
    )
    assert (pool.memory, pool.align) == ("host", 8)
    assert (place.block_stride, place.layer_stride, place.page_bytes) == (
        block_stride,
        layer_stride,
        100,
    )
    _, alone = by_hand.packed_pool("p", num_layers=1, num_blocks=7, page_bytes=100)
    assert alone.layer_stride == 0


@pytest.mark.parametrize("shape", [SHAPE, Shape(3, 7, 2, 16, 8, "f32"), Shape(heads=1)])
def test_sglangs_buffers_are_as_written_by_hand(shape: Shape) -> None:
    slots = sglang.Slots(tuple(range(shape.layers)), shape.blocks * shape.tokens, shape.tokens)
    found = sglang.attention(
        abi_placements.MODEL,
        slots,
        heads=(0, shape.heads, shape.heads),
        head_size=shape.size,
        dtype=shape.dtype,
    )
    due = canonical(abi_placements.sglang(shape))
    assert (found.pools, found.groups) == (due.pools, due.groups)


def test_sglangs_layers_keep_their_numbers() -> None:
    slots = sglang.Slots((4, 9), 64, 16, "host", 64)
    found = sglang.attention(MODEL, slots, heads=(2, 4, 8), head_size=32, value_size=16)
    group = found.groups[0]
    assert group.layers == (4, 9)
    assert bit_of(group, "v", layer=1, block=3, H=1, N=2, D=5) == (
        "v9",
        ((3 * 16 + 2) * 2 * 16 + 16 + 5) * 16,
    )
    assert {(p.memory, p.align) for p in found.pools} == {("host", 64)}
    assert group.owner.heads == (2, 4, 8)


def test_sglangs_latents_have_one_buffer_for_each_layer() -> None:
    found = sglang.latent(MODEL, sglang.Slots((0, 1), 256, 64), replica=(1, 4))
    group = found.groups[0]
    assert (group.kind, group.owner.heads, group.owner.replica) == ("mla", (0, 1, 1), (1, 4))
    assert [(p.id, p.num_bytes, p.num_blocks) for p in found.pools] == [
        ("k0", 256 * 1152, 4),
        ("k1", 256 * 1152, 4),
    ]
    assert bit_of(group, "rope", layer=1, block=2, N=3, D=1) == (
        "k1",
        8 * ((2 * 64 + 3) * 1152 + 1024 + 2),
    )


def test_sglangs_slots_are_whole_pages() -> None:
    with pytest.raises(Contradiction, match="num_slots: 100 slots are no pages of 16"):
        sglang.latent(MODEL, sglang.Slots((0,), 100, 16))


def test_what_sglang_does_not_have_is_found_by_the_check() -> None:
    with pytest.raises(DescriptorError):
        sglang.attention(MODEL, sglang.Slots((0,), 64, 16), heads=(4, 2, 8), head_size=32)


def test_rotary_parameters_are_text_and_whole_numbers() -> None:
    assert rope_parameters(
        {
            "rope_theta": 10000.0,
            "rope_type": "yarn",
            "original_max_position_embeddings": 4096,
            "truncate": True,
            "mscale": None,
            "long_factor": [1.0, 1.5, 2],
            "rope_scaling": {"factor": 4.0, "inner": {"type": "linear"}},
        }
    ) == {
        "rope_theta": "f64:40c3880000000000",
        "rope_type": "yarn",
        "original_max_position_embeddings": 4096,
        "truncate": 1,
        "long_factor": ["f64:3ff0000000000000", "f64:3ff8000000000000", 2],
        "rope_scaling.factor": "f64:4010000000000000",
        "rope_scaling.inner.type": "linear",
    }


def test_a_truth_value_is_a_whole_number() -> None:
    assert type(rope_parameters({"a": True})["a"]) is int


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"a": float("nan")}, "a: nan is not finite"),
        ({"a": {"b": [float("inf")]}}, r"a\.b: inf is not finite"),
        ({"a": [[1]]}, "a: expected a number, text or a list of them, got list"),
        ({"a": b"x"}, "a: expected a number, text or a list of them, got bytes"),
        ({"a": [None]}, "got NoneType"),
        ({"a": {"b": 1}, "a.b": 2}, r"a\.b: given twice"),
    ],
)
def test_other_values_are_refused(values: dict[str, Any], message: str) -> None:
    with pytest.raises(MalformedDescriptor, match=message):
        rope_parameters(values)
