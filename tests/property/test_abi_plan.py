"""Plans between all placements move what the formula says, and a bent plan cannot be proved."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from support.abi_moves import (
    element_bytes,
    filled,
    moved,
    moved_by_hand,
    with_heads,
    with_layers,
    with_tokens,
)
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import ProofFailed
from transload_abi.plan import Blocks, Pair, Plan, num_bytes, num_runs, run_lengths
from transload_abi.plan.types import Batch, Sequence, Template
from transload_abi.proof import prove
from transload_abi.types import Descriptor

NAMES = sorted(PLACEMENTS)


def placed(name: str, shape: Shape, owner: tuple[int, int], first_layer: int) -> Descriptor:
    return with_layers(with_heads(PLACEMENTS[name](shape), *owner), first_layer)


@st.composite
def transfers(draw: st.DrawFn) -> tuple[Descriptor, Descriptor, Blocks]:
    """Any two placements, slices of heads, layers and tokens, block sizes, and block lists."""
    total = draw(st.sampled_from([1, 2, 3, 4]))
    size, dtype = draw(st.sampled_from([(2, "f32"), (8, "bf16"), (16, "bf16"), (16, "f16")]))
    unit = draw(st.sampled_from([1, 2, 4]))
    run = draw(st.sampled_from([1, 2]))
    is_sliced = draw(st.booleans())
    sides, lists = [], []
    num_tokens = draw(st.integers(1, 24))
    for _ in range(2):
        first = draw(st.integers(0, total - 1))
        heads = draw(st.integers(1, total - first))
        tokens = unit * draw(st.sampled_from([1, 2, 3])) * (run if is_sliced else 1)
        ranks = draw(st.sampled_from([1, 2])) if is_sliced else 1
        layers, first_layer = draw(st.integers(1, 3)), draw(st.integers(0, 2))
        num = -(-num_tokens // (tokens * ranks))
        shape = Shape(layers, num + 3, heads, tokens, size, dtype)
        d = placed(draw(st.sampled_from(NAMES)), shape, (first, total), first_layer)
        if ranks > 1:
            d = with_tokens(d, draw(st.integers(0, 1)), 2, run)
        ids = list(range(1, num + 3))
        if draw(st.booleans()):
            ids = draw(st.permutations(ids))
        sides.append(d)
        lists.append(ids[:num])
    per_block = sides[1].groups[0].tokens_per_block * sides[1].groups[0].owner.tokens.size
    first_token = per_block * draw(st.integers(0, (num_tokens - 1) // per_block))
    return sides[0], sides[1], Blocks({0: lists[0]}, {0: lists[1]}, num_tokens, first_token)


def has_common_part(src: Descriptor, dst: Descriptor) -> bool:
    (a,), (b,) = src.groups, dst.groups
    heads = max(a.owner.heads[0], b.owner.heads[0]) < min(a.owner.heads[1], b.owner.heads[1])
    both = (a.owner.tokens.size, b.owner.tokens.size) == (2, 2)
    ranks = not both or a.owner.tokens.rank == b.owner.tokens.rank
    return heads and ranks and bool(set(a.layers) & set(b.layers))


def check(src: Descriptor, dst: Descriptor, blocks: Blocks) -> Plan:
    """Make a plan, carry it out, compare it with the naive move, and prove it."""
    plan = Pair.compile(src, dst).plan(blocks)
    before = filled(src, 1), filled(dst, 2)
    after = moved(plan, *before)
    due = moved_by_hand(src, dst, blocks, before)
    # Pads may come along, and so may what a partly filled last block has after the last token.
    held = element_bytes(dst, blocks.dst, range(blocks.num_tokens))
    for pool, memory in after.items():
        assert all(memory[at] == due[pool][at] for at in held[pool])
        others = set(range(len(memory))) - held[pool]
        inside = own_bytes(dst, blocks, pool)
        assert all(memory[at] == before[1][pool][at] for at in others - inside)
    assert num_bytes(plan) == sum(a * b for a, b in run_lengths(plan).items())
    prove(plan, src, dst, blocks)
    return plan


def own_bytes(d: Descriptor, blocks: Blocks, pool: str) -> set[int]:
    """All bytes of elements or pads of the request's blocks from the first token on."""
    (group,) = d.groups
    per_block = group.tokens_per_block
    ranks = group.owner.tokens.size
    ids = blocks.dst[0][blocks.first_token // (per_block * ranks) :]
    fake = Blocks({}, {0: ids}, 0)
    whole = with_tokens(d, 0, 1)
    inside = element_bytes(whole, fake.dst, range(len(ids) * per_block))[pool]
    num_bytes = d.pool(pool).block_bytes
    for block in ids:
        inside.update(range(block * num_bytes, (block + 1) * num_bytes))
        for place, position in product(group.places, range(len(group.layers))):
            if place.pools[position if len(place.pools) > 1 else 0] == pool:
                start = place.offset + position * place.layer_stride + block * place.block_stride
                inside.update(range(start, start + place.page_bytes))
    return inside


@given(transfers())
@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_a_plan_moves_what_the_formula_says(case: tuple[Descriptor, Descriptor, Blocks]) -> None:
    src, dst, blocks = case
    if has_common_part(src, dst):
        check(src, dst, blocks)


@pytest.mark.parametrize(("src", "dst"), list(product(NAMES, NAMES)))
def test_every_pair_of_placements(src: str, dst: str) -> None:
    for ours, theirs in ((4, 4), (2, 4), (4, 2), (6, 4)):
        shape = Shape(layers=2, blocks=12, heads=2, tokens=ours, size=8)
        sides = PLACEMENTS[src](shape), PLACEMENTS[dst](shape._replace(tokens=theirs))
        blocks = Blocks(
            {0: [3, 4, 5, 9, 8, 1][: -(-10 // ours)]}, {0: [2, 3, 7, 8, 9][: -(-10 // theirs)]}, 10
        )
        plan = check(*sides, blocks)
        assert num_runs(plan) > 0


# --- bent plans


def bent(plan: Plan, kind: str, at: int) -> Plan | None:
    """A plan with one thing changed; None where it has no such thing."""
    (batch,) = plan.batches
    number = at % len(batch.templates)
    one = batch.templates[number]
    if kind == "duplicate piece":
        return Plan((batch._replace(sequences=(*batch.sequences, batch.sequences[0])),))
    if kind == "drop piece":
        return Plan((batch._replace(sequences=batch.sequences[1:]),))
    if kind == "other piece":
        first, *rest = batch.sequences
        return Plan((batch._replace(sequences=(Sequence(first.src + 1, *first[1:]), *rest)),))
    if kind == "far piece":
        first, *rest = batch.sequences
        return Plan((batch._replace(sequences=(Sequence(first[0], 10_000, 1), *rest)),))
    changed = _bent_template(one, kind)
    if changed is None:
        return None
    kept = batch.templates
    return Plan((Batch(**{**batch._asdict(), "templates": _put(kept, number, changed)}),))


def _put(
    templates: tuple[Template, ...], number: int, changed: tuple[Template, ...]
) -> tuple[Template, ...]:
    return (*templates[:number], *changed, *templates[number + 1 :])


def _bent_template(one: Template, kind: str) -> tuple[Template, ...] | None:
    if kind == "shift source":
        return (one._replace(src=one.src._replace(offset=one.src.offset + 1)),)
    if kind == "shift destination":
        return (one._replace(dst=one.dst._replace(offset=one.dst.offset + 1)),)
    if kind == "drop template":
        return ()
    if kind == "twice":
        return (one, one)
    if kind == "lengthen":
        return (one._replace(run_bytes=one.run_bytes + 1),)
    if kind == "shorten":
        # By half: an end may be a pad.
        return (one._replace(run_bytes=one.run_bytes // 2),) if one.run_bytes > 1 else None
    if kind == "block stride":
        return (one._replace(src=one.src._replace(block_stride=one.src.block_stride + 1)),)
    if not one.loops:
        return None
    count, ours, theirs = one.loops[-1]
    loops = {
        "count": (count - 1, ours, theirs),
        "source stride": (count, ours + 1, theirs),
        "destination stride": (count, ours, theirs + 1),
    }
    return (one._replace(loops=(*one.loops[:-1], loops[kind])),)


BENDS = [
    "shift source",
    "shift destination",
    "drop template",
    "twice",
    "lengthen",
    "shorten",
    "block stride",
    "count",
    "source stride",
    "destination stride",
    "duplicate piece",
    "drop piece",
    "other piece",
    "far piece",
]


@pytest.mark.parametrize("kind", BENDS)
@given(data=st.data())
@settings(max_examples=40, deadline=None)
def test_a_bent_plan_cannot_be_proved(kind: str, data: st.DataObject) -> None:
    names = st.sampled_from(NAMES)
    tokens = data.draw(st.sampled_from([(4, 4), (2, 4), (4, 2)]))
    src, dst = (PLACEMENTS[data.draw(names)](Shape(2, 12, 2, count, 8)) for count in tokens)
    lists = [[3, 1, 5, 9, 8, 6, 2][: -(-10 // count)] for count in tokens]
    blocks = Blocks({0: lists[0]}, {0: lists[1]}, 10)
    plan = Pair.compile(src, dst).plan(blocks)
    prove(plan, src, dst, blocks)
    changed = bent(plan, kind, data.draw(st.integers(0, 7)))
    if changed is not None:
        with pytest.raises(ProofFailed):
            prove(changed, src, dst, blocks)
