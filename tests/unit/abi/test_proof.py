"""What a proof finds in plans that were bent by hand, and what it says."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from support.abi_latents import packed
from support.abi_moves import regroup, with_heads, with_tokens
from support.abi_placements import PLACEMENTS, Shape
from transload_abi import proof_bits
from transload_abi.check import check
from transload_abi.errors import LimitExceeded, ProofFailed
from transload_abi.plan import Batch, Blocks, Conversion, Operand, Pair, Plan
from transload_abi.plan.narrow import Take, narrowed
from transload_abi.plan.types import Sequence, Side, Template
from transload_abi.proof import prove
from transload_abi.types import Descriptor, Place

SHAPE = Shape(layers=2, blocks=9, heads=2, tokens=4, size=8)
BLOCKS = Blocks({0: [1, 4]}, {0: [2, 3]}, 8)


def cache(layout: str = "LBHNC", **changes: object) -> Descriptor:
    return PLACEMENTS[layout](SHAPE._replace(**changes))  # type: ignore[arg-type]


def planned(src: Descriptor, dst: Descriptor, blocks: Blocks = BLOCKS) -> Plan:
    plan = Pair.compile(src, dst, allow_lossy=True).plan(blocks)
    prove(plan, src, dst, blocks)
    return plan


def failure(plan: Plan, src: Descriptor, dst: Descriptor, blocks: Blocks | None = None) -> str:
    with pytest.raises(ProofFailed) as error:
        prove(plan, src, dst, blocks)
    return str(error.value)


def with_batch(plan: Plan, **changes: object) -> Plan:
    batch = plan.batches[0]
    changed = batch._replace(**changes)  # type: ignore[arg-type]
    return Plan((changed, *plan.batches[1:]))


def with_template(plan: Plan, change: Callable[[Template], Template]) -> Plan:
    first, *rest = plan.batches[0].templates
    return with_batch(plan, templates=(change(first), *rest))


# --- bits


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda one: one._replace(src=one.src._replace(offset=one.src.offset + 2)),
            "batches[0]: bits from 0 on come from the wrong place",
        ),
        (
            lambda one: one._replace(dst=one.dst._replace(offset=one.dst.offset + 32)),
            "batches[0]: bits 0 to 256 are not all written",
        ),
        (
            lambda one: one._replace(run_bytes=16),
            "batches[0]: bits 0 to 256 are not all written",
        ),
        (
            lambda one: one._replace(run_bytes=33),
            "batches[0]: bit 256 is written twice",
        ),
        (
            lambda one: one._replace(loops=one.loops[1:]),
            "batches[0]: bits 18432 to 18688 are not written",
        ),
        (lambda one: one._replace(run_bytes=0), "batches[0]: a template copies nothing"),
        (
            lambda one: one._replace(loops=((0, 1, 1),)),
            "batches[0]: a template copies nothing",
        ),
        (
            lambda one: one._replace(src=one.src._replace(pool="other")),
            "batches[0]: no pool 'other' of 1 parts a block",
        ),
        (
            lambda one: one._replace(src=one.src._replace(part_offsets=(0, 8))),
            "batches[0]: no pool 'kv' of 1 parts a block",
        ),
        (
            lambda one: one._replace(src=one.src._replace(block_stride=1)),
            "batches[0]: bits from 0 on come from the wrong place",
        ),
    ],
)
def test_bent_templates(change: Callable[[Template], Template], message: str) -> None:
    src, dst = cache("LBNHC"), cache("LBHNC")
    plan = planned(src, dst)
    assert failure(with_template(plan, change), src, dst) == message


def test_a_destination_that_steps_over_blocks_wrongly() -> None:
    src, dst = cache("LBNHC"), cache("LBHNC")
    plan = with_template(
        planned(src, dst), lambda one: one._replace(dst=one.dst._replace(block_stride=1))
    )
    assert failure(plan, src, dst) == "batches[0]: bits 0 to 256 are nobody's pad"


def test_a_role_that_is_left_out() -> None:
    src, dst = cache("trtllm"), cache("odd")
    plan = planned(src, dst)
    assert len(plan.batches[0].templates) == 2
    for kept in plan.batches[0].templates:
        assert "are not" in failure(with_batch(plan, templates=(kept,)), src, dst)


def test_a_plan_without_templates_moves_nothing() -> None:
    src = cache()
    plan = planned(src, src)
    for each in (with_batch(plan, templates=()), Plan(())):
        assert failure(each, src, src) == "no batch moves attention to attention"


def test_a_batch_that_comes_twice() -> None:
    src = cache()
    plan = planned(src, src)
    message = "batches[1]: attention to attention is moved by batch 0, too"
    assert failure(Plan(plan.batches * 2), src, src) == message


def test_heads_that_the_source_lacks_are_not_due() -> None:
    src, dst = with_heads(cache(heads=1), 1, 4), with_heads(cache("odd"), 1, 4)
    planned(src, dst)
    planned(dst, src)


# --- pieces


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([(1, 2, 1), (4, 2, 1)], "piece 2 of the destination is written twice"),
        ([(1, 2, 2), (4, 3, 1)], "piece 3 of the destination is written twice"),
        ([(1, 9, 1)], "a piece is outside of the blocks of pool kv"),
        ([(8, 2, 2)], "a piece is outside of the blocks of pool kv"),
        ([(-1, 2, 1)], "a piece is outside of the blocks of pool kv"),
        ([(1, 2, 0)], "a piece is outside of the blocks of pool kv"),
    ],
)
def test_bent_sequences(sequences: list[tuple[int, int, int]], message: str) -> None:
    src, dst = cache("LBNHC"), cache("LBHNC")
    plan = with_batch(planned(src, dst), sequences=tuple(Sequence(*each) for each in sequences))
    assert failure(plan, src, dst) == f"batches[0]: {message}"


@pytest.mark.parametrize(
    ("sequences", "message"),
    [
        ([(4, 2, 1), (1, 3, 1)], "state 0 of block 2 comes from another token"),
        ([(1, 2, 1)], "state 0 of block 3 is not moved"),
        ([(1, 2, 1), (4, 3, 1), (5, 6, 1)], "block 6: a piece without a token is moved"),
        ([(1, 2, 1), (4, 5, 1)], "state 0 of block 3 is not moved"),
    ],
)
def test_pieces_that_are_not_what_the_lists_say(
    sequences: list[tuple[int, int, int]], message: str
) -> None:
    src, dst = cache("LBNHC"), cache("LBHNC")
    plan = with_batch(planned(src, dst), sequences=tuple(Sequence(*each) for each in sequences))
    prove(plan, src, dst)
    assert failure(plan, src, dst, BLOCKS) == f"batches[0]: {message}"


def test_parts_that_are_shifted_within_a_block() -> None:
    src, dst = cache("LBNHC"), cache("LBHNC", tokens=8)
    blocks = Blocks({0: [1, 4]}, {0: [2]}, 8)
    plan = planned(src, dst, blocks)
    turned = with_batch(plan, sequences=(Sequence(1, 5, 1), Sequence(4, 4, 1)))
    prove(turned, src, dst)
    assert "comes from another token" in failure(turned, src, dst, blocks)
    side = plan.batches[0].templates[0].dst
    bent = with_template(
        plan,
        lambda one: one._replace(dst=side._replace(part_offsets=(0, 2 + side.part_offsets[1]))),
    )
    assert "batches[0]: bits" in failure(bent, src, dst)


@pytest.mark.parametrize("interleave", [1, 2, 4])
def test_tokens_of_ranks(interleave: int) -> None:
    whole, part = cache(), with_tokens(cache("odd"), 1, 2, interleave)
    planned(whole, part, Blocks({0: [1, 4]}, {0: [3]}, 8))
    plan = planned(part, whole, Blocks({0: [3]}, {0: [1, 4]}, 7))
    other = Blocks({0: [3]}, {0: [1, 5]}, 7)
    assert "is not moved" in failure(plan, part, whole, other)


def test_tokens_of_ranks_with_runs_of_two_blocks() -> None:
    whole, part = cache(), with_tokens(cache("odd"), 1, 2, 8)
    # Tokens 8 to 13 are the rank's first six.
    blocks = Blocks({0: [1, 2, 3, 4]}, {0: [5, 6]}, 14)
    plan = planned(whole, part, blocks)
    assert plan.batches[0].sequences == (Sequence(3, 5, 2),)
    planned(part, whole, blocks._replace(src=blocks.dst, dst=blocks.src))
    turned = with_batch(plan, sequences=(Sequence(3, 6, 1), Sequence(4, 5, 1)))
    assert "comes from another token" in failure(turned, whole, part, blocks)


def test_lists_that_begin_late() -> None:
    d = regroup(cache(), kind="sliding_window", window=3)
    blocks = Blocks({0: [1, 4]}, {0: [3]}, 8)
    plan = planned(d, d, blocks)
    moved = with_batch(plan, sequences=(Sequence(1, 3, 1),))
    assert "comes from another token" in failure(moved, d, d, blocks)
    late = planned(d, d, Blocks({0: [4]}, {0: [2, 3]}, 8))
    assert late.batches[0].sequences == (Sequence(4, 3, 1),)


def test_chunks_that_are_over_need_not_move() -> None:
    d = regroup(cache(), kind="chunked_local", window=4)
    blocks = Blocks({0: [0, 4]}, {0: [2, 3]}, 8)
    plan = planned(d, d, blocks)
    assert plan.batches[0].sequences == (Sequence(4, 3, 1),)
    prove(plan, d, d, blocks)
    assert "is not moved" in failure(with_batch(plan, sequences=()), d, d, blocks)


def test_windows_may_leave_out_what_nobody_sees() -> None:
    d = regroup(cache(), kind="sliding_window", window=3)
    plan = planned(d, d, Blocks({0: [0, 4]}, {0: [0, 3]}, 8))
    assert plan.batches[0].sequences == (Sequence(4, 3, 1),)
    blocks = Blocks({0: [1, 4]}, {0: [2, 3]}, 8)
    prove(plan, d, d, blocks)
    empty = with_batch(plan, sequences=())
    assert "is not moved" in failure(empty, d, d, blocks)


def test_a_ring_and_a_state_are_their_last_block() -> None:
    ring = regroup(cache(), kind="ring", window=4)
    plan = planned(ring, ring, Blocks({0: [1]}, {0: [2]}, 100))
    other = with_batch(plan, sequences=(Sequence(3, 2, 1),))
    assert "comes from another token" in failure(other, ring, ring, Blocks({0: [1]}, {0: [2]}, 100))
    assert "is not moved" in failure(
        with_batch(plan, sequences=()), ring, ring, Blocks({0: [1]}, {0: [2]}, 100)
    )
    nothing = planned(ring, ring, Blocks({0: [1]}, {0: [2]}, 100, 100))
    assert not nothing.batches[0].sequences
    assert "without a token" in failure(plan, ring, ring, Blocks({0: [1]}, {0: [0]}, 100))


def test_a_block_for_two_tables() -> None:
    d = cache()
    (group,) = d.groups
    both = replace(d, groups=(group, replace(group, id="other", layers=(2, 3), table=1)))
    plan = planned(both, both, Blocks({0: [1], 1: [2]}, {0: [3], 1: [4]}, 4))
    first, second = plan.batches
    bent = Plan((first, second._replace(sequences=(Sequence(2, 3, 1),))))
    assert failure(bent, both, both) == "block 3 of pool kv is written for two tables"


# --- pads


def test_pads_belong_to_the_block() -> None:
    d = packed(("none", 1), ("fp8_ds_mla_656", 1), tokens=2, page_pad=8, block_pad=40)
    blocks = Blocks({0: [1]}, {0: [2]}, 2)
    plan = planned(d, d, blocks)
    block = d.pools[0].block_bytes
    longer = with_template(plan, lambda one: one._replace(run_bytes=block + 1))
    assert "nobody's pad" in failure(longer, d, d)
    plain = replace(d, pools=(replace(d.pools[0], block_bytes=0),))
    assert "nobody's pad" in failure(plan, d, plain)
    assert "nobody's pad" in failure(plan, plain, d)


def test_pads_hold_no_element() -> None:
    d = packed(("none", 1), ("fp8_ds_mla_656", 1), tokens=2)
    rebuilt = replace(d, groups=(d.groups[0], replace(d.groups[1], transferable=False)))
    plan = planned(d, d, Blocks({0: [1]}, {0: [2]}, 2))
    message = failure(plan, rebuilt, rebuilt)
    assert message.endswith("is an element of fp8_ds_mla_656-1 and no pad")


def test_pads_of_two_pages_may_be_neighbours() -> None:
    # K's page ends in a pad of 8 bytes, V's begins with one; both are copied as one run.
    d = cache(layers=1)
    (group,) = d.groups
    row = (("H", 1, 2, 128), ("N", 1, 4, 256), ("D", 1, 8, 16))
    roles = tuple(
        replace(role, terms=row, base_bits=base, place=number)
        for number, (role, base) in enumerate(zip(group.roles, (0, 64), strict=True))
    )
    places = tuple(Place(("kv",), 272, 0, first, 136) for first in (0, 136))
    pool = replace(d.pools[0], num_bytes=9 * 272, block_bytes=0)
    padded = replace(d, pools=(pool,), groups=(replace(group, roles=roles, places=places),))
    check(padded)
    plan = planned(padded, padded)
    assert [one.run_bytes for one in plan.batches[0].templates] == [272]
    narrow = tuple(replace(place, page_bytes=0) for place in places)
    unowned = replace(padded, groups=(replace(padded.groups[0], places=(places[0], narrow[1])),))
    assert failure(plan, unowned, unowned) == "batches[0]: bits 1088 to 1152 are nobody's pad"


def test_pads_of_pages_belong_to_the_page() -> None:
    d = packed(("none", 1), tokens=2, page_pad=8)
    (place,) = d.groups[0].places
    plan = planned(d, d, Blocks({0: [1]}, {0: [2]}, 2))
    bare = replace(d, pools=(replace(d.pools[0], block_bytes=0),))
    prove(plan, bare, bare)
    short = replace(place, page_bytes=place.page_bytes - 8)
    assert "nobody's pad" in failure(plan, bare, regroup(bare, places=(short,)))


def test_pads_of_a_block_may_come_first() -> None:
    d = packed(("none", 1), tokens=2, block_pad=40)
    (place,) = d.groups[0].places
    later = regroup(d, places=(replace(place, offset=16, page_bytes=0),))
    plan = planned(later, later, Blocks({0: [1]}, {0: [2]}, 2))
    assert plan.batches[0].templates[0].run_bytes == d.pools[0].block_bytes


def test_pads_of_a_page_may_come_first() -> None:
    d = packed(("none", 1), tokens=2, page_pad=8)
    (group,) = d.groups
    roles = tuple(replace(role, base_bits=role.base_bits + 64) for role in group.roles)
    bare = replace(regroup(d, roles=roles), pools=(replace(d.pools[0], block_bytes=0),))
    plan = planned(bare, bare, Blocks({0: [1]}, {0: [2]}, 2))
    assert plan.batches[0].templates[0].run_bytes == group.places[0].page_bytes


def test_pads_may_be_elements_of_another_table() -> None:
    d = packed(("none", 2), tokens=2, block_pad=8)
    (group,) = d.groups
    (place,) = group.places
    place = replace(place, offset=8)
    other = replace(group, id="other", table=1, layers=(2, 3), places=(place,))
    both = replace(d, groups=(group, other), model=replace(d.model, num_layers=4))
    plan = planned(both, both, Blocks({0: [1], 1: [2]}, {0: [3], 1: [4]}, 2))
    assert [len(batch.templates) for batch in plan.batches] == [1, 1]


def test_runs_may_be_single_bytes() -> None:
    src, dst = cache("LBHNC", dtype="i8"), cache("vllm_cpu", dtype="i8")
    plan = planned(src, dst)
    assert 1 in {template.run_bytes for template in plan.batches[0].templates}


def test_cut_blocks_have_no_pads() -> None:
    src, dst = cache("odd"), cache("odd", tokens=8)
    plan = planned(src, dst, Blocks({0: [1, 4]}, {0: [2]}, 8))
    # The first 16 bytes of a pool are before all blocks.
    first = plan.batches[0].templates[0]
    sides = first.src._replace(offset=0), first.dst._replace(offset=0)
    more = Template(*sides, 1)
    longer = with_batch(plan, templates=(*plan.batches[0].templates, more))
    assert failure(longer, src, dst).endswith("is no element's and blocks are cut")


# --- conversions


def first_conversion(plan: Plan, **changes: object) -> Plan:
    first, *rest = plan.batches[0].conversions
    changed = first._replace(**changes)  # type: ignore[arg-type]
    return with_batch(plan, conversions=(changed, *rest))


def operand(plan: Plan, where: str, number: int, **changes: object) -> Plan:
    """The first conversion with an operand changed."""
    conversion: Conversion = plan.batches[0].conversions[0]
    operands: list[Operand] = list(getattr(conversion, where))
    operands[number] = operands[number]._replace(**changes)  # type: ignore[arg-type]
    return first_conversion(plan, **{where: tuple(operands)})


def shifted(plan: Plan, where: str, number: int = 0) -> Plan:
    each: Operand = getattr(plan.batches[0].conversions[0], where)[number]
    return operand(plan, where, number, side=each.side._replace(offset=each.side.offset + 4))


def test_bent_conversions() -> None:
    src, dst = cache("LBNHC"), cache("odd", dtype="f32")
    plan = planned(src, dst)
    batch = plan.batches[0]
    first = batch.conversions[0]
    bends = [
        with_batch(plan, conversions=batch.conversions[1:]),
        with_batch(plan, conversions=(first, *batch.conversions)),
        first_conversion(plan, layer=1),
        first_conversion(plan, role="v"),
        first_conversion(plan, src_codec="fp8_per_tensor"),
        first_conversion(plan, src=()),
        shifted(plan, "src"),
        shifted(plan, "dst"),
        operand(plan, "src", 0, dtype="f16"),
        operand(plan, "dst", 0, values="f32:3f800000"),
        operand(plan, "src", 0, terms=first.src[0].terms[1:]),
        operand(plan, "dst", 0, shape={"H": 1, "N": 4, "D": 8}),
        operand(plan, "src", 0, shape={"N": 4, "H": 2, "D": 8}),
        operand(plan, "src", 0, side=first.src[0].side._replace(block_stride=8)),
        operand(plan, "dst", 0, side=first.dst[0].side._replace(block_stride=8)),
    ]
    for each in bends:
        failure(each, src, dst)


def test_heads_are_not_mixed() -> None:
    src, dst = cache("LBNHC"), with_heads(cache("LBHNC", heads=1, dtype="f32"), 0, 2)
    plan = planned(src, dst)
    each = plan.batches[0].conversions[0].src[0]
    other = each.side._replace(offset=each.side.offset + 32)
    message = failure(operand(plan, "src", 0, side=other), src, dst)
    assert message == "batches[0]: a conversion of k mixes heads"


def test_heads_of_a_layer_may_come_from_several_groups() -> None:
    src, dst = cache("LBNHC"), cache("LBHNC", dtype="f32")
    (group,) = src.groups
    part = narrowed(src, [Take(group, (0, 1), (head, head + 1)) for head in range(2)])
    plan = planned(part, dst)
    assert len(plan.batches[0].conversions) == 8
    failure(shifted(plan, "src"), part, dst)


def test_what_is_converted_is_asked_for() -> None:
    src, dst = cache("LBNHC"), cache("LBHNC", dtype="f32")
    bent = first_conversion(planned(src, dst), layer=7)
    assert failure(bent, src, dst) == "batches[0]: nobody asks for k of layer 7"


def test_inline_scales_are_looked_at() -> None:
    src, dst = packed(("fp8_ds_mla_656", 1), tokens=2), packed(("none", 1), tokens=2)
    blocks = Blocks({0: [1]}, {0: [2]}, 2)
    plan = planned(src, dst, blocks)
    failure(shifted(plan, "src", 1), src, dst)
    failure(first_conversion(plan, src=plan.batches[0].conversions[0].src[:1]), src, dst)
    back = planned(dst, src, blocks)
    failure(shifted(back, "dst", 1), dst, src)


def test_bits_are_not_copied_where_numbers_must_change() -> None:
    src, dst = cache("LBHNC"), cache("LBHNC", dtype="f16")
    plan = planned(src, dst)
    same = planned(src, src)
    bent = with_batch(plan, templates=same.batches[0].templates, conversions=())
    assert failure(bent, src, dst) == "batches[0]: bits from 0 on come from the wrong place"


def test_numbers_are_not_converted_where_bits_are_the_same() -> None:
    src, dst = cache("LBHNC"), cache("LBHNC", dtype="f32")
    plan = planned(src, dst)
    conversions = tuple(each._replace(dst=each.src) for each in plan.batches[0].conversions)
    bent = with_batch(plan, conversions=conversions)
    assert failure(bent, src, src).endswith("needs no conversion")


# --- size


def test_a_piece_beyond_the_budget_is_not_proved(monkeypatch: pytest.MonkeyPatch) -> None:
    src, dst = cache("LBHNC"), cache("vllm_cpu")
    plan = planned(src, dst)
    monkeypatch.setattr(proof_bits, "MAX_STRIPS", 10)
    with pytest.raises(LimitExceeded, match="more than 10 stretches"):
        prove(plan, src, dst)
    huge = with_template(plan, lambda one: one._replace(loops=((1 << 40, 1, 1),)))
    with pytest.raises(LimitExceeded):
        prove(huge, src, dst)


def test_batches_whose_parts_fit_no_group() -> None:
    src = cache()
    plan = planned(src, src)
    sides = (Side("kv", 0, 8, (0, 1, 2)), Side("kv", 0, 8, (0, 1, 2)))
    batch = Batch(0, (Template(*sides, 1),), (), 3, 3, plan.batches[0].sequences)
    assert failure(Plan((batch,)), src, src) == (
        "batches[0]: bit 0 is no element's and blocks are cut"
    )
