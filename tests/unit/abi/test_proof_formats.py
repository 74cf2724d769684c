"""What a proof finds in bent plans of formats with nibbles, scales, states and unknown pages."""

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_moves import regroup
from support.abi_pages import Field, Shape, cells, described, page_bytes
from support.abi_relaid import HEADS, ROWS, STATES, in_cells, in_regions, linear
from transload_abi.errors import ProofFailed
from transload_abi.floats import f32
from transload_abi.plan import Blocks, Operand, Pair, Plan, Template
from transload_abi.plan.types import Side
from transload_abi.proof import prove
from transload_abi.types import Codec, Descriptor

ONE = Blocks({0: [1]}, {0: [2]}, 8)


def planned(src: Descriptor, dst: Descriptor, blocks: Blocks = ONE) -> Plan:
    plan = Pair.compile(src, dst, allow_lossy=True).plan(blocks)
    prove(plan, src, dst, blocks)
    return plan


def failure(plan: Plan, src: Descriptor, dst: Descriptor) -> str:
    with pytest.raises(ProofFailed) as error:
        prove(plan, src, dst)
    return str(error.value)


def with_batch(plan: Plan, **changes: object) -> Plan:
    (batch,) = plan.batches
    return Plan((batch._replace(**changes),))  # type: ignore[arg-type]


def with_template(plan: Plan, number: int, change: Callable[[Template], Template]) -> Plan:
    templates = list(plan.batches[0].templates)
    templates[number] = change(templates[number])
    return with_batch(plan, templates=tuple(templates))


def later(side: Side, count: int = 1) -> Side:
    return side._replace(offset=side.offset + count)


# --- bits


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (formats.nvfp4(shape=HEADS), formats.nvfp4(True, shape=HEADS)),
        (formats.ds_mla_352(ROWS), linear(formats.ds_mla_352(ROWS), "latent_scale")),
        (formats.v4_c4(STATES), in_cells(formats.v4_c4(STATES))),
        (formats.int4(shape=HEADS), in_regions(formats.int4(shape=HEADS))),
        (formats.turboquant(shape=HEADS), in_regions(formats.turboquant(shape=HEADS))),
    ],
    ids=["nvfp4", "352", "584", "int4", "turboquant"],
)
def test_every_template_counts(src: Descriptor, dst: Descriptor) -> None:
    blocks = ONE._replace(num_tokens=src.groups[0].tokens_per_block)
    plan = planned(src, dst, blocks)
    templates = plan.batches[0].templates
    assert len(templates) > 1
    for number in range(len(templates)):
        rest = templates[:number] + templates[number + 1 :]
        assert "written" in failure(with_batch(plan, templates=rest), src, dst)
        shifted = with_template(plan, number, lambda one: one._replace(src=later(one.src)))
        assert "batches[0]: bits" in failure(shifted, src, dst)
        failure(with_template(plan, number, lambda one: one._replace(dst=later(one.dst))), src, dst)


def test_tiles_of_scales_are_not_moved_as_rows() -> None:
    src, dst = formats.nvfp4(shape=HEADS), formats.nvfp4(True, shape=HEADS)
    same = planned(src, src)
    assert "come from the wrong place" in failure(same, src, dst)


def test_pages_of_another_writer_are_others() -> None:
    d = regroup(formats.opaque("writer", 192))
    plan = planned(d, d, Blocks({0: [1]}, {0: [1]}, 16))
    other = regroup(d, opaque="another")
    (message,) = {failure(plan, *pair) for pair in ((d, other), (other, d))}
    assert message == "batches[0]: bit 0 is an element of group and no pad"


def test_a_ring_beside_attention_is_its_own() -> None:
    """Keys of one layer by which tokens are chosen: compressed, and those yet to be compressed."""
    ring, keys = formats.key_ring(8), formats.compressed_keys(Shape(1, 8, 128))
    ring_group = replace(
        ring.groups[0],
        id="ring",
        table=1,
        places=(replace(ring.groups[0].places[0], pools=("ring",)),),
    )
    both = replace(
        keys,
        pools=(*keys.pools, replace(ring.pools[0], id="ring")),
        groups=(*keys.groups, ring_group),
    )
    blocks = Blocks({0: [1], 1: [1]}, {0: [1], 1: [1]}, 8)
    plan = planned(both, both, blocks)
    assert len(plan.batches) == 2
    for at, name in enumerate(("group to group", "ring to ring")):
        rest = tuple(batch for number, batch in enumerate(plan.batches) if number != at)
        assert failure(Plan(rest), both, both) == f"no batch moves {name}"


# --- conversions


def operand(plan: Plan, where: str, number: int, **changes: object) -> Plan:
    """The first conversion with an operand changed."""
    first, *rest = plan.batches[0].conversions
    operands: list[Operand] = list(getattr(first, where))
    operands[number] = operands[number]._replace(**changes)  # type: ignore[arg-type]
    changed = first._replace(**{where: tuple(operands)})  # type: ignore[arg-type]
    return with_batch(plan, conversions=(changed, *rest))


def scaled(k: float) -> Descriptor:
    return formats.nvfp4(True, k=k, shape=HEADS)


def test_conversions_read_scales_where_they_are() -> None:
    src, dst = scaled(0.5), formats.plain("f32", HEADS)
    plan = planned(src, dst)
    of_v = next(each for each in plan.batches[0].conversions if each.role == "v")
    assert [each.role for each in of_v.src] == ["v", "v_group_scale"]
    assert [each.values for each in of_v.src] == [f32(1.0), None]
    first = plan.batches[0].conversions[0]
    bends = [
        operand(plan, "src", 0, values=f32(1.0)),
        operand(plan, "src", 0, values=None),
        operand(plan, "src", 1, values=f32(0.5)),
        operand(plan, "src", 1, dtype="ue8m0"),
        operand(plan, "src", 1, terms=first.src[1].terms[1:]),
        operand(plan, "src", 1, shape={**first.src[1].shape, "G": 2}),
        operand(plan, "src", 1, side=later(first.src[1].side)),
        operand(plan, "src", 0, bit=4),
        operand(plan, "dst", 0, dtype="bf16"),
    ]
    for each in bends:
        failure(each, src, dst)


def test_scales_are_written_with_their_elements() -> None:
    src, dst = formats.plain("bf16", HEADS), scaled(0.5)
    plan = planned(src, dst)
    first, *rest = plan.batches[0].conversions
    assert [each.role for each in first.dst] == ["k", "k_group_scale"]
    without = first._replace(dst=first.dst[:1])
    message = failure(with_batch(plan, conversions=(without, *rest)), src, dst)
    assert message == "batches[0]: a conversion of k has other operands"
    failure(operand(plan, "dst", 1, side=later(first.dst[1].side)), src, dst)
    failure(operand(plan, "dst", 0, bit=4), src, dst)


def grouped(dtype: str, num_groups: int) -> Descriptor:
    """`[K, scales, V, scales]` with scales of so many groups."""
    fields = [
        field
        for side in "kv"
        for field in (
            Field(side, "e2m1", "D", 64),
            Field(f"{side}_group_scale", dtype, "G", num_groups),
        )
    ]
    roles = cells(fields, [("H", 2), ("N", 8)])
    return described("full", roles, page_bytes(roles), HEADS, Codec("block_scaled"))


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (grouped("e4m3", 4), grouped("e4m3", 2)),
        (grouped("e4m3", 4), grouped("ue8m0", 4)),
        (scaled(0.5), scaled(0.25)),
    ],
    ids=["groups", "dtype", "scale of the layer"],
)
def test_elements_under_other_scales_are_not_copied(src: Descriptor, dst: Descriptor) -> None:
    plan = planned(src, dst)
    assert {each.role for each in plan.batches[0].conversions} >= {"k"}
    copied = planned(src, src).batches[0].templates
    failure(with_batch(plan, templates=copied, conversions=()), src, dst)


def test_elements_under_equal_scales_are_not_converted() -> None:
    src, dst = scaled(0.5), formats.plain("f32", HEADS)
    conversions = tuple(
        each._replace(dst=each.src, dst_codec=each.src_codec)
        for each in planned(src, dst).batches[0].conversions
    )
    bent = with_batch(planned(src, src), templates=(), conversions=conversions)
    assert failure(bent, src, src).endswith("needs no conversion")
