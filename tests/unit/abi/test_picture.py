"""A descriptor as people see it."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from support import abi_placements
from support.abi_placements import PLACEMENTS, SHAPE, Shape
from transload_abi import picture_overlays
from transload_abi.builders import Interior, vllm
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.errors import LimitExceeded
from transload_abi.fingerprints import of_descriptor, of_group
from transload_abi.footprint import Budget, Footprint, overlap
from transload_abi.picture import WIDTH, describe, page_map
from transload_abi.picture_words import layer_words, range_words, size_words, times_words
from transload_abi.types import Codec, Descriptor, Model, Owner, Producer, Rope, TokenSlice

FULL: dict[str, Any] = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 2,
    "head_size": 32,
    "dtype": "bfloat16",
}
WINDOW = FULL | {"class": "SlidingWindowSpec", "sliding_window": 128}
LATENT = FULL | {
    "class": "MLAAttentionSpec",
    "num_kv_heads": 1,
    "head_size": 576,
    "dtype": "uint8",
    "kv_quant_mode": "FP8_PER_TENSOR",
    "cache_dtype_str": "fp8_ds_mla",
    "state_content_bytes": 656,
}
MODEL = Model(name="tiny", num_layers=8, rope=Rope(state="applied"))


def built(*specs: dict[str, Any], layout: str = "LBHNC", **interior: Any) -> Descriptor:
    """A pool of two layers for each specification, each a group over the same bytes."""
    tensors, groups = [], []
    for number, spec in enumerate(specs):
        names = [f"model.layers.{2 * number + layer}.attn" for layer in range(2)]
        dense = strides(read_spec(spec), layout, 2, 4)
        tensors.append(
            {
                "size": 8 * max(read_spec(each).page_bytes for each in specs),
                "layers": names,
                "layer_stride": dense.layer,
                "block_stride": dense.block,
            }
        )
        groups.append({"layer_names": names, "kv_cache_spec": spec})
    config = {"num_blocks": 4, "kv_cache_tensors": tensors, "kv_cache_groups": groups}
    facts = vllm.Facts(model=MODEL, producer=Producer("vllm", "0.32.0"))
    return vllm.descriptor(config, facts=facts, interior=Interior(**interior), layout=layout)


PICTURES = {
    "packed": (
        built(FULL),
        """\
  0x000000       64 B  k             bf16     0          0          0-31
                                              ... 16 tokens, 128 B apart
                                              ... 2 heads, 2 KiB apart
  0x000040       64 B  v             bf16     0          0          0-31
                                              ... 16 tokens, 128 B apart
                                              ... 2 heads, 2 KiB apart""",
    ),
    "cpu, in kernel blocks": (
        built(FULL, name="cpu", kernel_block_size=8),
        """\
  0x000000       16 B  k             bf16     0          0-7        0
                                              ... 32 elements, 16 B apart
                                              ... 2 heads, 1 KiB apart
                                              ... 2 steps of 8 tokens, 2 KiB apart
  0x000200       64 B  v             bf16     0          0          0-31
                                              ... 8 tokens, 64 B apart
                                              ... 2 heads, 1 KiB apart
                                              ... 2 steps of 8 tokens, 2 KiB apart""",
    ),
    "rocm": (
        abi_placements.rocm(Shape(tokens=16, size=32)),
        """\
  0x000000       16 B  k             bf16     0          0          0-7
                                              ... 16 tokens, 16 B apart
                                              ... 4 steps of 8 elements, 256 B apart
                                              ... 4 heads, 1 KiB apart
  0x001000       32 B  v             bf16     0          0-15       0
                                              ... 32 elements, 32 B apart
                                              ... 4 heads, 1 KiB apart""",
    ),
    "sglang": (
        abi_placements.sglang(),
        """\
  place 0
  0x000000       32 B  k             bf16     0          0          0-15
                                              ... 4 heads, 32 B apart
                                              ... 8 tokens, 128 B apart
  place 1
  0x000000       32 B  v             bf16     0          0          0-15
                                              ... 4 heads, 32 B apart
                                              ... 8 tokens, 128 B apart""",
    ),
    "pads": (
        abi_placements.odd(Shape(heads=1, tokens=2)),
        """\
  0x000000        2 B  v             bf16     0          0          0
                                              ... 16 elements, 4 B apart
                                              ... 2 tokens, 72 B apart
  0x000002        2 B  k             bf16     0          0          0
                                              ... 16 elements, 4 B apart
                                              ... 2 tokens, 72 B apart
                  8 B  pad                    between them
  0x000088       48 B  pad                    to the page's end""",
    ),
    "scales in cells": (
        built(
            FULL
            | {"dtype": "int8", "kv_quant_mode": "INT8_PER_TOKEN_HEAD", "state_content_bytes": 72}
        ),
        """\
  0x000000       32 B  k             i8       0          0          0-31
                                              ... 16 tokens, 72 B apart
                                              ... 2 heads, 1152 B apart
  0x000020        4 B  k_scale       f32      0          0
                                              ... 16 tokens, 72 B apart
                                              ... 2 heads, 1152 B apart
  0x000024       32 B  v             i8       0          0          0-31
                                              ... 16 tokens, 72 B apart
                                              ... 2 heads, 1152 B apart
  0x000044        4 B  v_scale       f32      0          0
                                              ... 16 tokens, 72 B apart
                                              ... 2 heads, 1152 B apart""",
    ),
    "656": (
        built(LATENT),
        """\
  0x000000      512 B  latent        e4m3     0          0-511
                                              ... 16 tokens, 656 B apart
  0x000200       16 B  latent_scale  f32      0                     0-3
                                              ... 16 tokens, 656 B apart
  0x000210      128 B  rope          bf16     0          0-63
                                              ... 16 tokens, 656 B apart""",
    ),
    "heads outside of layers": (
        built(FULL, layout="BHLNC"),
        """\
  0x000000       64 B  k             bf16     0          0          0-31
                                              ... 16 tokens, 128 B apart
                                              ... 2 heads, 4 KiB apart
  0x000040       64 B  v             bf16     0          0          0-31
                                              ... 16 tokens, 128 B apart
                                              ... 2 heads, 4 KiB apart""",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_is_a_map(name: str) -> None:
    d, picture = PICTURES[name]
    assert page_map(d.groups[0]).split("\n", 1)[1] == picture


def test_the_heading_names_the_axes_that_are_there() -> None:
    names = [page_map(PICTURES[name][0].groups[0]).split("\n")[0] for name in ("packed", "656")]
    assert names == [
        "  offset        bytes  role          type     head       token      element",
        "  offset        bytes  role          type     token      element    group",
    ]


def test_a_whole_picture() -> None:
    d = built(FULL, WINDOW, layout="BLHNC")
    first, second = d.groups
    whole, one, other = (
        "   ".join(f"{name} {digits[:12]}" for name, digits in found._asdict().items())
        for found in (of_descriptor(d), of_group(d, first), of_group(d, second))
    )
    page = page_map(first)
    assert (
        describe(d)
        == f"""\
kvabi/1  tiny   8 layers   keys rotated   from vllm 0.32.0 BLHNC
  fingerprints   {whole}

pools
  kv   device   32 KiB   4 blocks   aligned to 256 B   a block is 8 KiB in one piece

group full.0   full   layers 0-1   heads 0-1 of 2   16 tokens per block   table 0
    block 0 means not held
  fingerprints   {one}
  codec none
  page at 0x000000 + block x 8 KiB + layer position x 4 KiB of kv   owns 4 KiB
{page}

group sliding_window.1   sliding_window   layers 2-3   heads 0-1 of 2   16 tokens per block
    window of 128 tokens   table 1   block 0 means not held
  fingerprints   {other}
  codec none
  page at 0x000000 + block x 8 KiB + layer position x 4 KiB of kv   owns 4 KiB
{page}

groups full.0 and sliding_window.1 overlay the same bytes: a block id is one table's at a time
"""
    )


@pytest.mark.parametrize("name", PLACEMENTS)
def test_no_line_is_wider_than_a_terminal(name: str) -> None:
    d = PLACEMENTS[name](Shape(layers=40, blocks=1 << 16, heads=64, tokens=64, size=256))
    odd_layers = (*range(0, 60, 2), 61, 63, 60, 1, 9, 3, 47, 5, 7, 11)
    d = replace(d, groups=(replace(d.groups[0], layers=odd_layers),))
    assert max(len(line) for line in describe(d).splitlines()) <= WIDTH


def test_groups_side_by_side_do_not_overlay() -> None:
    d = abi_placements.vllm("BLHNC", SHAPE._replace(layers=4))
    group = d.groups[0]
    place = group.places[0]
    first = replace(group, id="a", layers=(0, 1))
    second = replace(
        group,
        id="b",
        table=1,
        layers=(2, 3),
        places=(replace(place, offset=2 * place.layer_stride),),
    )
    apart = describe(replace(d, groups=(first, second)))
    assert "overlay" not in apart
    assert "table 0 fills 4 KiB of a block's 8 KiB in kv" in apart
    over = replace(second, places=(place,))
    assert "groups a and b overlay the same bytes" in describe(replace(d, groups=(first, over)))
    same_table = replace(over, table=0)
    assert "overlay" not in describe(replace(d, groups=(first, same_table)))
    elsewhere = replace(over, places=(replace(place, pools=("other",)),))
    pools = (*d.pools, replace(d.pools[0], id="other"))
    assert "overlay" not in describe(replace(d, pools=pools, groups=(first, elsewhere)))


def test_groups_too_irregular_to_tell_apart_are_told_as_such(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def give_up(*_: object) -> None:
        raise LimitExceeded("too irregular")

    d = built(FULL, WINDOW)
    assert "overlay the same bytes: a block id" in describe(d)
    monkeypatch.setattr(picture_overlays, "overlap", give_up)
    shown = describe(d)
    assert "more groups may overlay the same bytes: it is too irregular to tell" in shown
    assert "overlay the same bytes: a block id" not in shown


def by_layer(num_pools: int, num_groups: int) -> Descriptor:
    """Groups over the same bytes of pools of one layer each, each group with its own table."""
    d = abi_placements.sglang(SHAPE._replace(layers=num_pools // 2))
    (group,) = d.groups
    groups = (
        replace(group, id=str(at), table=at, transferable=at == 0) for at in range(num_groups)
    )
    return replace(d, groups=tuple(groups))


def test_pools_that_are_alike_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def counted(footprints: list[Footprint], budget: Budget) -> tuple[int, int] | None:
        asked.append(len(footprints))
        return overlap(footprints, budget)

    monkeypatch.setattr(picture_overlays, "overlap", counted)
    assert describe(by_layer(80, 3)).count(" overlay the same bytes") == 3
    assert asked == [3, 2]


def test_no_list_of_pools_is_searched_for_each_pool() -> None:
    class Counted(tuple[str, ...]):
        searched = 0

        def __contains__(self, one: object) -> bool:
            Counted.searched += 1
            return super().__contains__(one)

    d = by_layer(80, 3)
    groups = tuple(
        replace(
            group,
            places=tuple(replace(place, pools=Counted(place.pools)) for place in group.places),
        )
        for group in d.groups
    )
    describe(replace(d, groups=groups))
    assert Counted.searched == 0


def changed(**fields: Any) -> str:
    """The picture's facts of a group that is not like others."""
    d = abi_placements.vllm("LBHNC")
    return describe(replace(d, groups=(replace(d.groups[0], **fields),)))


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"owner": Owner(heads=(2, 6, 16))}, "heads 2-5 of 16"),
        ({"owner": Owner(heads=(3, 4, 8))}, "heads 3 of 8"),
        ({"owner": Owner(heads=(0, 4, 4), replica=(1, 2))}, "replica 1 of 2"),
        (
            {"owner": Owner(heads=(0, 4, 4), tokens=TokenSlice(1, 2, 8))},
            "tokens of rank 1 of 2, 8 in a row",
        ),
        ({"transferable": False}, "not transferable"),
        ({"kind": "chunked_local", "window": 64}, "chunk of 64 tokens"),
        ({"kind": "ring", "window": 64}, "ring of 64 tokens"),
        ({"window": 64}, "window of 64 tokens"),
        ({"tokens_per_state": (4, 1), "tokens_per_block": 32}, "1 state for 4 tokens"),
        ({"tokens_per_state": (1, 2), "tokens_per_block": 4}, "2 states for 1 token"),
        (
            {"codec": Codec("fp8_per_tensor", {"scales.k": ["f32:3f000000"] * 2})},
            "codec fp8_per_tensor   scales.k 0.5 in all layers",
        ),
        (
            {"codec": Codec("fp8_per_tensor", {"scales.k": ["f32:3f000000", "f32:3dcccccd"]})},
            "scales.k 0.5 0.1\n",
        ),
        (
            {"codec": Codec("x", {"s": [1, 2, 3, 4, 5], "name": "y"})},
            "codec x   name y   s 1 2 3 ... 5",
        ),
    ],
)
def test_what_is_unusual_of_a_group_is_said(fields: dict[str, Any], fact: str) -> None:
    assert fact in changed(**fields)
    assert fact not in changed()


def test_a_block_of_no_meaning_is_said_where_there_is_one() -> None:
    assert "block 0 means not held" in changed()
    assert "not held" not in changed(null_block=None)


def test_a_state_is_one_for_all_tokens() -> None:
    spec = {
        "class": "MambaSpec",
        "block_size": 64,
        "shapes": [[3, 16], [2, 8, 16]],
        "dtypes": ["bfloat16", "float32"],
        "page_size_padded": 2048,
    }
    picture = describe(built(spec))
    assert "one state for all tokens so far" in picture
    assert "type     state      element\n" in picture
    assert "  0x000460      928 B  pad                    to the page's end" in picture
    assert "heads" not in picture


@pytest.mark.parametrize(
    ("fields", "fact"),
    [
        ({"rope": Rope("unknown")}, "nobody says whether keys are rotated"),
        ({"rope": Rope("none")}, "no rotary embedding"),
        ({"rope": Rope("not_applied", {"rope_theta": 1, "a": 2})}, "not rotated (a, rope_theta)"),
        ({"revision": "main"}, "revision main"),
        ({"weights": "sha256:" + "ab" * 32}, "weights sha256:abababababab\n"),
        ({"adapter": "lora"}, "adapter lora"),
        ({"kv_share": ((7, 3), (6, 2))}, "shared KV: layer 6 reads 2, 7 reads 3"),
    ],
)
def test_what_is_known_of_the_model_is_said(fields: dict[str, Any], fact: str) -> None:
    d = abi_placements.vllm("LBHNC")
    assert fact in describe(replace(d, model=replace(MODEL, **fields)))


def test_pools_that_differ_by_number_are_one_line() -> None:
    d = abi_placements.sglang(Shape(layers=12))
    assert (
        "  k0 to k11, 12 pools, each   device   5 KiB   5 blocks   aligned to 256 B\n"
        "      a block is 1 KiB in one piece\n"
        "  v0 to v11, 12 pools, each   device"
    ) in describe(d)
    assert (
        "page in place 1 at 0x000000 + block x 1 KiB of v0 to v11, a pool for each layer"
        in describe(d)
    )


def test_a_blocks_pad_is_each_pools_own() -> None:
    d = abi_placements.sglang()
    pools = tuple(replace(pool, block_bytes=2 * pool.block_bytes) for pool in d.pools)
    picture = describe(replace(d, pools=pools))
    for pool in ("k0", "k1", "v0", "v1"):
        assert f"table 0 fills 1 KiB of a block's 2 KiB in {pool}" in picture
    assert "fills" not in describe(d)


def test_pages_that_interleave_say_so() -> None:
    assert "layer position x 2 KiB of kv   interleaved with others" in describe(
        built(FULL, layout="BHLNC")
    )


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ((0,), "0"),
        ((0, 1, 2, 3), "0-3"),
        ((0, 2), "0, 2"),
        ((0, 2, 4), "0-4 by 2"),
        ((5, 4, 3), "5, 4, 3"),
        ((0, 1, 5, 6, 9), "0-1, 5-6, 9"),
        ((1, 3, 5, 6, 7), "1-5 by 2, 6-7"),
        ((), ""),
    ],
)
def test_layers_in_words(layers: tuple[int, ...], words: str) -> None:
    assert layer_words(layers) == words


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (4, "4 bit"),
        (0, "0 B"),
        (8, "1 B"),
        (8 * 656, "656 B"),
        (8 * 33792, "33 KiB"),
        (8 * 2**20, "1 MiB"),
        (8 * (2**20 + 1024), "1025 KiB"),
        (8 * 3 * 2**30, "3 GiB"),
    ],
)
def test_sizes_are_not_rounded(bits: int, words: str) -> None:
    assert size_words(bits) == words


def test_counts_and_ranges() -> None:
    assert (times_words(1, "head"), times_words(2, "head")) == ("1 head", "2 heads")
    assert (range_words(3, 4), range_words(0, 4)) == ("3", "0-3")
