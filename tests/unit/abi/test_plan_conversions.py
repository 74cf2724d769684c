"""Which roles and layers are converted, from which bytes to which; which are copied as they are."""

from __future__ import annotations

import numpy as np
import pytest
from msgspec.structs import replace

from support.abi_latents import packed
from support.abi_moves import regroup, with_heads
from support.abi_placements import PLACEMENTS, Shape
from transload_abi.errors import Refused
from transload_abi.floats import f32
from transload_abi.oracle import blank, execute, read_values, write_values
from transload_abi.plan import Blocks, Pair, Plan
from transload_abi.proof import prove
from transload_abi.types import Codec, Descriptor, Owner, Role

SHAPE = Shape(layers=2, blocks=9, heads=2, tokens=4, size=8)

VALUES = np.array([-2, -1, -0.5, 0.5, 1, 2, 4], np.float32)


def scaled(layout: str, k: list[float], v: list[float], dtype: str = "e4m3") -> Descriptor:
    """A cache of 8-bit floats with a scale per layer."""
    wide = PLACEMENTS[layout](SHAPE._replace(size=16))
    (group,) = wide.groups
    roles = tuple(
        replace(
            role,
            dtype=dtype,
            bits=8,
            shape={**role.shape, "D": 8},
            terms=tuple((a, b, 8 if a == "D" else c, d) for a, b, c, d in role.terms),
        )
        for role in group.roles
    )
    params: dict[str, int | str | list[int | str]] = {
        "scales.k": [f32(one) for one in k],
        "scales.v": [f32(one) for one in v],
    }
    return regroup(wide, roles=roles, codec=Codec("fp8_per_tensor", params))


def per_head(dtype: str = "i8", tokens: int = 4) -> Descriptor:
    """Cells of `[K 8][scale][V 8][scale]`."""
    d = PLACEMENTS["LBNHC"](SHAPE._replace(tokens=tokens, size=6))
    (group,) = d.groups
    cell = {axis: stride for axis, _, _, stride in group.roles[0].terms}
    shape = {"H": 2, "N": tokens}
    hn = (("H", 1, 2, cell["H"]), ("N", 1, tokens, cell["N"]))
    roles = tuple(
        role
        for number, name in enumerate("kv")
        for role in (
            Role(name, dtype, 8, {**shape, "D": 8}, (*hn, ("D", 1, 8, 8)), 96 * number),
            Role(f"{name}_scale", "f32", 32, shape, hn, 96 * number + 64),
        )
    )
    return regroup(d, roles=roles, codec=Codec("per_token_head"))


def plain(layout: str = "LBHNC", dtype: str = "bf16", tokens: int = 4) -> Descriptor:
    return PLACEMENTS[layout](SHAPE._replace(dtype=dtype, tokens=tokens))


def converted(
    src: Descriptor, dst: Descriptor, src_ids: list[int], dst_ids: list[int], heads: slice
) -> Plan:
    """Plan, prove, carry out; the destination's values must be those of the source."""
    count = src.groups[0].tokens_per_block * len(src_ids)
    blocks = Blocks({0: src_ids}, {0: dst_ids}, count)
    plan = Pair.compile(src, dst, allow_lossy=True).plan(blocks)
    prove(plan, src, dst, blocks)
    before, after = blank(src), blank(dst)
    chance = np.random.default_rng(3)
    for name in ("k", "v"):
        (group,) = src.groups
        role = group.role(name)
        assert role
        extents = [role.shape[axis] for axis in "HND"]
        shape = (len(group.layers), len(src_ids), *extents)
        values = chance.choice(VALUES, size=shape)
        write_values(src, before, group.id, name, src_ids, values)
    execute(plan, before, after)
    for name in ("k", "v"):
        ours = tokens_of(read_values(src, before, src.groups[0].id, name, src_ids))
        theirs = tokens_of(read_values(dst, after, dst.groups[0].id, name, dst_ids))
        np.testing.assert_allclose(theirs[:, :, :count], ours[:, heads], rtol=0.01)
    return plan


def tokens_of(
    values: np.ndarray[tuple[int, ...], np.dtype[np.float32]],
) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """`[layers, blocks, H, N, D]` as `[layers, H, tokens, D]`."""
    layers, blocks, heads, states, size = values.shape
    return values.transpose(0, 2, 1, 3, 4).reshape(layers, heads, blocks * states, size)


ALL = slice(0, 2)


@pytest.mark.parametrize(
    ("src", "dst"),
    [
        (plain(), plain("vllm_cpu", "f32")),
        (plain("odd"), plain("LBNHC", "f16")),
        (scaled("LBHNC", [0.5, 2], [1, 4]), plain()),
        (plain(), scaled("BLNHC", [0.5, 2], [1, 4])),
        (scaled("LBHNC", [0.5, 2], [1, 4]), scaled("LBHNC", [1, 1], [1, 0.25], "e5m2")),
        (per_head(), plain("LBNHC", "f32")),
        (plain(), per_head("e4m3")),
        (per_head("i8"), per_head("e4m3")),
    ],
)
def test_values_arrive(src: Descriptor, dst: Descriptor) -> None:
    plan = converted(src, dst, [3, 4, 1], [6, 2, 5], ALL)
    (batch,) = plan.batches
    assert not batch.templates
    assert [(each.role, each.layer) for each in batch.conversions] == [
        (role, layer) for role in ("k", "v") for layer in (0, 1)
    ]


@pytest.mark.parametrize(("ours", "theirs"), [(4, 8), (8, 4), (4, 6)])
def test_values_arrive_in_blocks_of_other_sizes(ours: int, theirs: int) -> None:
    count = 24 // ours
    src_ids, dst_ids = list(range(1, 1 + count)), [5, 2, 7, 1, 3, 6][: 24 // theirs]
    converted(plain("odd", tokens=ours), plain("rocm", "f32", theirs), src_ids, dst_ids, ALL)
    converted(per_head(tokens=ours), plain("LBNHC", "f32", theirs), src_ids, dst_ids, ALL)


def test_only_common_heads_are_converted() -> None:
    dst = with_heads(PLACEMENTS["LBNHC"](SHAPE._replace(dtype="f32", heads=1)), 1, 2)
    plan = converted(plain(), dst, [3], [4], slice(1, 2))
    operand = plan.batches[0].conversions[0].src[0]
    assert operand.shape == {"H": 1, "N": 4, "D": 8}
    assert operand.side.offset == 4 * 8 * 2 * 2


def test_layers_with_the_same_scale_are_copied() -> None:
    src, dst = scaled("LBHNC", [0.5, 2], [1, 4]), scaled("LBNHC", [0.5, 1], [1, 4])
    (batch,) = converted(src, dst, [3], [4], ALL).batches
    assert [(each.role, each.layer) for each in batch.conversions] == [("k", 1)]
    assert [each.values for each in batch.conversions[0].src] == [f32(2)]
    assert [each.values for each in batch.conversions[0].dst] == [f32(1)]
    assert sum(one.run_bytes * one.loops[-1][0] for one in batch.templates) > 0


def test_inline_scales_go_with_their_values() -> None:
    plan = Pair.compile(per_head(), per_head(tokens=8)).plan(Blocks({0: [1]}, {0: [2]}, 4))
    prove(plan, per_head(), per_head(tokens=8))
    (batch,) = plan.batches
    assert not batch.conversions
    assert len(batch.templates) == 1


def test_the_rotary_part_of_latents_stays_as_it_is() -> None:
    src, dst = packed(("fp8_ds_mla_656", 2), tokens=2), packed(("none", 2), tokens=2)
    plan = Pair.compile(src, dst, allow_lossy=True).plan(Blocks({0: [1]}, {0: [2]}, 2))
    prove(plan, src, dst)
    (batch,) = plan.batches
    assert [each.role for each in batch.conversions] == ["latent", "latent"]
    assert [each.role for each in batch.conversions[0].src] == ["latent", "latent_scale"]
    assert [each.role for each in batch.conversions[0].dst] == ["latent"]
    (template,) = batch.templates
    assert template.run_bytes == 128


def test_losses_must_be_allowed() -> None:
    with pytest.raises(Refused, match=r"^groups\[0\]\.roles\[0\]\.dtype: attention to attention: "):
        Pair.compile(plain(dtype="f32"), plain())
    with pytest.raises(Refused, match=r"losses are not allowed here$"):
        Pair.compile(plain(dtype="f32"), plain())
    assert Pair.compile(plain(), plain(dtype="f32")).lanes[0].conversions


def test_heads_amid_a_digit_are_converted_one_by_one() -> None:
    shape = Shape(layers=1, blocks=4, heads=4, tokens=2, size=4)
    src = PLACEMENTS["LBHNC"](shape)
    (group,) = src.groups
    strides = {axis: stride for axis, _, _, stride in group.roles[0].terms}
    step = strides["H"]
    roles = tuple(
        replace(
            role,
            terms=(
                ("H", 1, 2, 2 * step),
                ("H", 2, 2, step),
                *(term for term in role.terms if term[0] != "H"),
            ),
        )
        for role in group.roles
    )
    src = regroup(src, roles=roles)
    for dtype in ("f32", "bf16"):
        dst = with_heads(PLACEMENTS["LBNHC"](shape._replace(heads=2, dtype=dtype)), 1, 4)
        blocks = Blocks({0: [1]}, {0: [2]}, 2)
        plan = Pair.compile(src, dst).plan(blocks)
        prove(plan, src, dst, blocks)
        heads = [each.src[0].shape["H"] for each in plan.batches[0].conversions]
        assert heads == ([1] * 4 if dtype == "f32" else [])


def tiled(layers: int, heads: int) -> Descriptor:
    """Heads in three rows, each of a third of them, with a pad after each row."""
    d = PLACEMENTS["LBHNC"](SHAPE._replace(layers=layers, heads=heads + 3, tokens=1))
    (group,) = d.groups
    roles = []
    for role in group.roles:
        (step,) = (term[3] for term in role.terms if term[0] == "H")
        rest = tuple(term for term in role.terms if term[0] != "H")
        tiles = (("H", 1, heads // 3, step), ("H", heads // 3, 3, (heads // 3 + 1) * step))
        roles.append(replace(role, shape={**role.shape, "H": heads}, terms=(*tiles, *rest)))
    return regroup(d, roles=tuple(roles), owner=Owner((0, heads, heads)))


def test_heads_that_fit_badly_are_converted_in_few_ranges() -> None:
    src = tiled(2, 3000)
    dst = with_heads(PLACEMENTS["LBHNC"](Shape(2, 9, 2998, 1, 8, "f32")), 1, 3000)
    (lane,) = Pair.compile(src, dst).lanes
    # Heads 1 to 1000, two whole rows less what 2,998 leaves of the last, and the rest.
    counts = [each.dst[0].shape["H"] for each in lane.conversions]
    assert counts == 4 * [999, 1000, 999]
    with_few = tiled(2, 6), with_heads(PLACEMENTS["LBHNC"](Shape(2, 9, 4, 1, 8, "f32")), 1, 6)
    converted(*with_few, [1, 5, 6], [3, 4, 8], slice(1, 5))


def test_offsets_of_parts_are_the_same_object_in_all_layers() -> None:
    src = PLACEMENTS["LBHNC"](SHAPE._replace(layers=7, tokens=64))
    dst = PLACEMENTS["LBNHC"](SHAPE._replace(layers=7, tokens=1, dtype="f32"))
    (lane,) = Pair.compile(src, dst).lanes
    assert len(lane.conversions) == 14
    for name in "kv":
        found = [each.src[0].side.part_offsets for each in lane.conversions if each.role == name]
        assert len(found[0]) == 64
        assert len({id(each) for each in found}) == 1
