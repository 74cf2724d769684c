"""Several sources for one destination: who gives what, and what is missing."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from msgspec.structs import replace

from support.abi_moves import (
    Memory,
    element_bytes,
    filled,
    moved,
    moved_by_hand,
    regroup,
    with_heads,
    with_layers,
    with_tokens,
)
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import LimitExceeded, Refused
from transload_abi.plan import Blocks, Cover, Plan, narrow, num_bytes, run_lengths
from transload_abi.plan import cover as cover_module
from transload_abi.proof import prove
from transload_abi.types import Codec, Descriptor, Owner, Role, TokenSlice

SHAPE = Shape(layers=2, blocks=12, heads=4, tokens=4, size=8)
BLOCKS = Blocks({0: [1, 5, 6, 2]}, {0: [3, 4, 8, 9]}, 16)


def heads(layout: str, first: int, count: int, replica: tuple[int, int] = (0, 1)) -> Descriptor:
    return with_heads(PLACEMENTS[layout](SHAPE._replace(heads=count)), first, 4, replica)


def layers(layout: str, first: int, count: int) -> Descriptor:
    return with_layers(PLACEMENTS[layout](SHAPE._replace(layers=count)), first)


def ranks(size: int, interleave: int, tokens: int = 4) -> list[Descriptor]:
    d = PLACEMENTS["LBNHC"](SHAPE._replace(tokens=tokens))
    return [with_tokens(d, rank, size, interleave) for rank in range(size)]


def covered(
    sources: Sequence[Descriptor], dst: Descriptor, blocks: Blocks = BLOCKS
) -> list[Plan | None]:
    """Plan, prove, carry out, and compare with each element moved by itself."""
    cover = Cover.compile(sources, dst)
    plans = cover.plan(blocks)
    before = filled(dst, 9)
    after, due = before, before
    # The same element has the same bytes in every source: those of one memory of the whole.
    whole = filled(dst, 5)
    for number, (source, plan) in enumerate(zip(sources, plans, strict=True)):
        memory = moved_by_hand(dst, source, _turned(blocks), (whole, filled(source, number)))
        due = moved_by_hand(source, dst, blocks, (memory, due))
        if plan:
            part = cover.sources[number]
            assert part
            prove(plan, part, dst)
            after = moved(plan, memory, after)
    _check_alike(dst, blocks, after, due)
    sizes = element_bytes(dst, blocks.dst, range(blocks.first_token, blocks.num_tokens))
    total = sum(num_bytes(plan) for plan in plans if plan)
    assert total == sum(map(len, sizes.values())), "each byte comes from one source"
    return plans


def _turned(blocks: Blocks) -> Blocks:
    return blocks._replace(src=blocks.dst, dst=blocks.src)


def _check_alike(dst: Descriptor, blocks: Blocks, after: Memory, due: Memory) -> None:
    held = element_bytes(dst, blocks.dst, range(blocks.num_tokens))
    for pool, spots in held.items():
        assert all(after[pool][at] == due[pool][at] for at in spots)


def shares(plans: Sequence[Plan | None]) -> list[list[tuple[int, int, int]]]:
    return [
        [tuple(each) for batch in plan.batches for each in batch.sequences] if plan else []  # type: ignore[misc]
        for plan in plans
    ]


# --- heads


@pytest.mark.parametrize("layout", ["LBNHC", "LBHNC", "BHLNC", "vllm_cpu", "odd"])
def test_two_ranks_to_one_and_to_four(layout: str) -> None:
    two = [heads(layout, 0, 2), heads(layout, 2, 2)]
    covered(two, heads("LBNHC", 0, 4))
    for first in range(4):
        plans = covered(two, heads("LBHNC", first, 1))
        assert [plan is not None for plan in plans] == [first < 2, first >= 2]


def test_four_ranks_to_two() -> None:
    four = [heads("LBHNC", first, 1) for first in range(4)]
    plans = covered(four, heads("LBHNC", 2, 2))
    assert [plan is not None for plan in plans] == [False, False, True, True]


def test_replicas_share_the_pieces() -> None:
    eight = [heads("LBNHC", rank // 2, 1, (rank % 2, 2)) for rank in range(8)]
    plans = covered(eight, heads("LBNHC", 0, 4))
    assert shares(plans) == [[(1, 3, 1), (5, 4, 1)], [(6, 8, 1), (2, 9, 1)]] * 4


def test_replicas_may_have_blocks_of_different_sizes() -> None:
    sources = [PLACEMENTS["LBNHC"](SHAPE._replace(tokens=count, blocks=24)) for count in (2, 8, 6)]
    dst = PLACEMENTS["LBHNC"](SHAPE)
    lists = [[5, 6, 9, 8, 7, 3, 2, 1, 4, 10], [3, 1, 2], [7, 9, 2, 4]]
    each = [Blocks({0: ids}, {0: [3, 4, 8, 9, 1]}, 20) for ids in (lists[0], lists[1], lists[2])]
    plans = Cover.compile(sources, dst).plan(each)
    written = sorted(
        (sequence.dst + i) * 4 // batch.dst_parts
        for plan in plans
        if plan
        for batch in plan.batches
        for sequence in batch.sequences
        for i in range(sequence.num_pieces)
        if (sequence.dst + i) % batch.dst_parts == 0
    )
    assert written == [4, 12, 16, 32, 36]
    for plan, source, one in zip(plans, sources, each, strict=True):
        assert plan
        prove(plan, source, dst)
        assert one.num_tokens == 20


def test_replicas_agree_on_shares_whatever_they_have_dropped() -> None:
    d = regroup(heads("LBNHC", 0, 4), kind="sliding_window", window=6)
    whole = BLOCKS._replace(dst={0: [3, 4, 8, 9]})
    late = whole._replace(src={0: [0, 0, 6, 2]})
    short = whole._replace(src={0: [5, 6, 2]})
    for each in ([whole, late], [late, whole], [late, late], [short, late], [short, short]):
        plans = Cover.compile([d, d], d).plan(each)
        found = [
            (src + i, dst + i) for plan in shares(plans) for src, dst, n in plan for i in range(n)
        ]
        assert len(found) == len(set(found))
        assert {(6, 8), (2, 9)} <= set(found) <= {(1, 3), (5, 4), (6, 8), (2, 9)}


@pytest.mark.parametrize("replica", [0, 1])
def test_replicas_of_the_destination_begin_with_different_sources(replica: int) -> None:
    eight = [heads("LBNHC", rank // 2, 1, (rank % 2, 2)) for rank in range(8)]
    plans = covered(eight, heads("LBNHC", 1, 1, (replica, 2)))
    due: list[list[tuple[int, int, int]]] = [[(1, 3, 1), (5, 4, 1)], [(6, 8, 1), (2, 9, 1)]]
    if replica:
        due.reverse()
    assert shares(plans) == [[], [], *due, [], [], [], []]


def test_one_rank_to_replicas() -> None:
    for rank in range(8):
        covered([heads("LBNHC", 0, 4)], heads("LBHNC", rank // 2, 1, (rank % 2, 2)))


def test_a_request_of_one_block_comes_from_one_replica() -> None:
    pair = [heads("LBNHC", 0, 4, (n, 2)) for n in range(2)]
    blocks = Blocks({0: [1]}, {0: [3]}, 2)
    plans = Cover.compile(pair, heads("LBNHC", 0, 4)).plan(blocks)
    assert [plan is not None for plan in plans] == [False, True]


def test_a_state_comes_from_one_replica() -> None:
    role = Role("ssm", "f32", 32, {"N": 1, "D": 4}, (("D", 1, 4, 32),))
    other = replace(role, role="conv", base_bits=128)
    d = regroup(
        heads("LBNHC", 0, 4),
        kind="recurrent",
        roles=(role, other),
        tokens_per_state=(4, 1),
        owner=Owner(),
    )
    plans = Cover.compile([d, d, d], d).plan(BLOCKS)
    assert shares(plans) == [[], [], [(2, 9, 1)]]


def test_of_overlapping_slices_the_first_gives_what_it_has() -> None:
    sources = [heads("LBNHC", 1, 2), heads("LBNHC", 0, 4)]
    plans = covered(sources, heads("LBHNC", 0, 4))
    sizes = [num_bytes(plan) for plan in plans if plan]
    assert sizes == [2 * 2 * 4 * 4 * 2 * 32 // 2, 2 * 2 * 4 * 4 * 2 * 32 // 2]
    plans = covered(sources[::-1], heads("LBHNC", 0, 4))
    assert plans[1] is None


def test_a_slice_that_is_there_already_is_not_taken_again() -> None:
    plans = covered(
        [heads("LBNHC", 0, 2), heads("LBNHC", 1, 1), heads("LBNHC", 2, 2)], heads("LBHNC", 0, 4)
    )
    assert [plan is not None for plan in plans] == [True, False, True]


# --- layers


@pytest.mark.parametrize("layout", ["LBNHC", "BLHNC", "sglang", "odd"])
def test_stages_join_and_part(layout: str) -> None:
    stages = [layers(layout, 0, 3), layers(layout, 3, 2)]
    covered(stages, layers("LBHNC", 0, 5))
    covered([layers("LBHNC", 0, 5)], stages[0])
    covered([layers("LBHNC", 0, 5)], stages[1])
    covered(stages, layers("BLNHC", 2, 2))


def test_stages_that_overlap() -> None:
    plans = covered([layers("sglang", 0, 3), layers("LBNHC", 1, 4)], layers("BLHNC", 0, 5))
    assert all(plans)
    plans = covered([layers("LBNHC", 2, 1), layers("sglang", 0, 5)], layers("BLHNC", 0, 5))
    assert all(plans)


def test_outside_scales_follow_their_layers() -> None:
    def scaled(first: int, count: int) -> Descriptor:
        d = layers("LBNHC", first, count)
        (group,) = d.groups
        texts: list[int | str] = [f"f32:3f8000{layer:02x}" for layer in range(first, first + count)]
        terms = tuple(
            replace(
                role,
                dtype="e4m3",
                bits=8,
                base_bits=role.base_bits // 2,
                terms=tuple((a, b, c, s // 2) for a, b, c, s in role.terms),
            )
            for role in group.roles
        )
        place = replace(
            group.places[0],
            block_stride=group.places[0].block_stride // 2,
            layer_stride=group.places[0].layer_stride // 2,
            page_bytes=group.places[0].page_bytes // 2,
        )
        codec = Codec("fp8_per_tensor", {"scales.k": texts, "scales.v": texts})
        return regroup(d, roles=terms, codec=codec, places=(place,))

    cover = Cover.compile([scaled(0, 2), scaled(1, 3)], scaled(0, 4))
    second = cover.sources[1]
    assert second
    (group,) = second.groups
    assert group.layers == (2, 3)
    assert group.codec.params["scales.v"] == ["f32:3f800002", "f32:3f800003"]
    for plan, part in zip(cover.plan(BLOCKS), cover.sources, strict=True):
        assert plan
        assert part
        assert not plan.batches[0].conversions
        prove(plan, part, scaled(0, 4))


def test_every_second_layer_is_one_group_of_the_part() -> None:
    (group,) = layers("LBNHC", 0, 3).groups
    apart = replace(layers("LBNHC", 0, 3), groups=(replace(group, layers=(1, 3, 5)),))
    cover = Cover.compile([apart, layers("LBNHC", 0, 6)], layers("LBHNC", 0, 6))
    part = cover.sources[1]
    assert part
    assert [each.layers for each in part.groups] == [(0, 2, 4)]
    covered([apart, layers("LBNHC", 0, 6)], layers("LBHNC", 0, 6))


# --- tokens


@pytest.mark.parametrize("interleave", [1, 2, 4, 8])
def test_ranks_of_a_context_parallel_group(interleave: int) -> None:
    # Blocks of 4 tokens of a rank: two ranks need half as many each.
    whole = PLACEMENTS["LBHNC"](SHAPE)
    blocks = Blocks({0: [1, 5]}, {0: [3, 4, 8, 9]}, 16)
    plans = covered(ranks(2, interleave), whole, blocks)
    assert all(plans)
    for part in ranks(2, interleave):
        covered([whole], part, _turned(blocks))


@pytest.mark.parametrize("is_first", [False, True])
def test_of_overlapping_tokens_the_source_with_more_gives_all(is_first: bool) -> None:
    whole = PLACEMENTS["LBHNC"](SHAPE)
    sources = [ranks(2, 2)[1], whole]
    blocks = Blocks({0: [1, 5, 6, 2]}, {0: [3, 4, 8, 9]}, 16)
    cover = Cover.compile(sources[::-1] if is_first else sources, whole)
    plans = cover.plan([blocks, blocks])
    assert [plan is not None for plan in plans] == [is_first, not is_first]


def test_of_each_layer_the_source_with_more_tokens_gives_all() -> None:
    # Either has one layer whole and the other's even tokens.
    d = PLACEMENTS["LBNHC"](SHAPE)
    (group,) = d.groups
    first, second = (
        replace(group, id=f"{layer}", layers=(layer,), table=layer) for layer in range(2)
    )
    half = replace(group.owner, tokens=TokenSlice(0, 2, 1))
    sources = [
        replace(d, groups=(first, replace(second, owner=half))),
        replace(d, groups=(replace(first, owner=half), second)),
    ]
    cover = Cover.compile(sources, replace(d, groups=(first, second)))
    assert [part and [one.layers for one in part.groups] for part in cover.sources] == [
        [(0,)],
        [(1,)],
    ]


def test_tokens_that_are_there_already_are_not_taken_again() -> None:
    half = ranks(2, 1)[0]
    cover = Cover.compile([half, *ranks(4, 1)], PLACEMENTS["LBHNC"](SHAPE))
    lists = [BLOCKS._replace(src={0: [1, 5]}), *[BLOCKS._replace(src={0: [7]})] * 4]
    plans = cover.plan(lists)
    assert [plan is not None for plan in plans] == [True, False, True, False, True]


def test_large_blocks_with_runs_of_sixteen() -> None:
    blocks = Blocks({0: [1, 5]}, {0: [3, 4]}, 64)
    whole = PLACEMENTS["LBHNC"](SHAPE._replace(tokens=32))
    plans = covered(ranks(2, 16, 32), whole, blocks._replace(src={0: [7]}))
    assert shares(plans) == [[(14, 6, 1), (15, 8, 1)], [(14, 7, 1), (15, 9, 1)]]


def test_four_ranks_to_two_ranks() -> None:
    blocks = Blocks({0: [1]}, {0: [3, 4]}, 16)
    for part in ranks(2, 2):
        covered(ranks(4, 1), part, blocks)


# --- what is refused


def test_missing_heads_are_named() -> None:
    with pytest.raises(Refused) as error:
        Cover.compile([heads("LBNHC", 0, 1), heads("LBNHC", 3, 1)], heads("LBHNC", 0, 4))
    assert str(error.value) == ("groups[0]: attention: no source has heads 1 to 2 of layers 0, 1")


def test_missing_layers_are_named() -> None:
    with pytest.raises(Refused) as error:
        Cover.compile([layers("LBNHC", 0, 2), layers("LBNHC", 3, 1)], layers("LBHNC", 0, 6))
    assert str(error.value) == (
        "groups[0]: attention: no source has heads 0 to 3 of layers 2, 4, 5"
    )


def test_missing_tokens_are_named() -> None:
    with pytest.raises(Refused, match="no source has token 1 and others of each 2, heads 0 to 3,"):
        Cover.compile(ranks(2, 1)[:1], PLACEMENTS["LBHNC"](SHAPE))


def test_no_source_at_all() -> None:
    with pytest.raises(Refused, match="no source has heads 0 to 3 of layers 0, 1"):
        Cover.compile([], heads("LBNHC", 0, 4))


def test_a_source_of_another_model_is_refused() -> None:
    d = heads("LBNHC", 0, 4)
    other = replace(d, model=replace(d.model, weights="sha256:" + "1" * 64))
    with pytest.raises(Refused, match="weights"):
        Cover.compile([d, other], d)


def test_a_source_that_cannot_be_converted_is_refused() -> None:
    d = heads("LBNHC", 0, 4)
    other = regroup(d, kind="sliding_window", window=4)
    with pytest.raises(Refused, match="window"):
        Cover.compile([d, other], d)


def test_losses_must_be_allowed() -> None:
    full, half = (PLACEMENTS["LBNHC"](SHAPE._replace(dtype=name)) for name in ("f32", "bf16"))
    with pytest.raises(Refused, match="losses are not allowed"):
        Cover.compile([full], half)
    assert Cover.compile([full], half, allow_lossy=True).pairs[0]


def test_slices_that_hardly_ever_repeat_are_refused() -> None:
    d = heads("LBNHC", 0, 4)
    many = [
        regroup(d, owner=replace(d.groups[0].owner, tokens=TokenSlice(0, size, 4)))
        for size in (251, 257, 263)
    ]
    with pytest.raises(LimitExceeded, match="repeat after"):
        Cover.compile(many, d)


# --- lists


def test_each_source_may_have_lists_of_its_own() -> None:
    stages = [layers("LBNHC", 0, 1), layers("LBNHC", 1, 1)]
    cover = Cover.compile(stages, layers("LBNHC", 0, 2))
    each = [BLOCKS, BLOCKS._replace(src={0: [7, 8, 9, 10]})]
    assert shares(cover.plan(each)) == [
        [(1, 3, 1), (5, 4, 1), (6, 8, 1), (2, 9, 1)],
        [(7, 3, 2), (9, 8, 2)],
    ]


def test_a_whole_source_keeps_its_whole_blocks() -> None:
    d = heads("BLNHC", 0, 4)
    cover = Cover.compile([d, d], d)
    assert cover.sources == (d, d)
    (plan, _) = cover.plan(BLOCKS)
    assert plan
    assert run_lengths(plan) == {d.pools[0].block_bytes: 2}


def in_thirds(count: int) -> Descriptor:
    """Heads in three rows with a pad after each, so that no digits say where some of them are."""
    d = PLACEMENTS["LBHNC"](SHAPE._replace(heads=count + 3))
    (group,) = d.groups
    roles = []
    for role in group.roles:
        (step,) = (term[3] for term in role.terms if term[0] == "H")
        rest = tuple(term for term in role.terms if term[0] != "H")
        rows = (("H", 1, count // 3, step), ("H", count // 3, 3, (count // 3 + 1) * step))
        roles.append(replace(role, shape={**role.shape, "H": count}, terms=(*rows, *rest)))
    return regroup(d, roles=tuple(roles), owner=Owner((0, count, count)))


@pytest.mark.parametrize("layout", ["LBHNC", "BLNHC", "LBNHC"])
def test_heads_without_digits_of_their_own_are_taken_in_ranges(layout: str) -> None:
    first = with_heads(PLACEMENTS["BLNHC"](SHAPE), 0, 12)
    dst = with_heads(PLACEMENTS[layout](SHAPE._replace(heads=11)), 0, 12)
    plans = covered([first, in_thirds(12)], dst)
    assert all(plans)
    (_, part) = Cover.compile([first, in_thirds(12)], dst).sources
    assert part
    # Heads 4 to 10: one row, and three heads of the next.
    assert [group.owner.heads for group in part.groups] == [(4, 8, 12), (8, 11, 12)]


def test_a_source_is_not_taken_in_very_many_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    sources = with_heads(PLACEMENTS["BLNHC"](SHAPE), 0, 12), in_thirds(12)
    dst = with_heads(PLACEMENTS["LBHNC"](SHAPE._replace(heads=11)), 0, 12)
    monkeypatch.setattr(narrow, "MAX_LAYERS", 1)
    with pytest.raises(Refused, match="heads 4 to 10 of attention lie in too many parts"):
        Cover.compile(sources, dst)


@pytest.mark.parametrize("tokens", [TokenSlice(0, 2, 1), TokenSlice(2, 3, 4), TokenSlice(5, 6, 2)])
def test_the_bits_of_a_slice(tokens: TokenSlice) -> None:
    bits = cover_module._bits(tokens, 24)
    ranks = [token // tokens.interleave % tokens.size for token in range(24)]
    assert [bits >> token & 1 for token in range(25)] == [*(r == tokens.rank for r in ranks), 0]
