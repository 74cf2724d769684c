"""Which of the known formats become which: every pair of them, and the examples by name."""

import itertools
from collections.abc import Callable
from typing import Any, Final

import pytest
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_formats import FORMATS, SIGNS
from support.abi_pages import PLAIN, Field, Shape, described, page_bytes, regions
from transload_abi.compare import compare
from transload_abi.types import Descriptor

NUMBERS: Final[dict[str, dict[str, tuple[str, ...]]]] = {
    "keys and values": {
        "bf16": ("bf16", "cpu", "rocm", "aiter", "planes"),
        "f16": ("f16",),
        "f32": ("f32",),
        "e4m3 of a layer": ("fp8",),
        "e5m2 of a layer": ("fp8 e5m2",),
        "i8 of a head": ("per_token_head i8",),
        "e4m3 of a head": ("per_token_head e4m3",),
        "u4 of a head": ("int4 unrotated",),
        "e2m1 by e4m3": ("nvfp4", "nvfp4 swizzled", "nvfp4 slots"),
    },
    "latents": {
        "bf16": ("mla",),
        "e4m3 of a layer": ("mla fp8",),
        "e4m3 by f32": ("656",),
        "e2m1 by e4m3": ("352",),
    },
    "latents of four tokens": {"bf16": ("v4 c4 bf16",), "e4m3 by ue8m0": ("584 c4",)},
    "whole latents of four tokens": {"e4m3 by ue8m0": ("528",), "e2m1 by e4m3": ("288",)},
    "keys that choose": {"e4m3 by f32": ("132",), "bf16": ("minimax_m3 indexer",)},
    "keys that choose of four tokens": {
        "e4m3 by f32": ("v4 132",),
        "e2m1 by ue8m0": ("v4 68",),
        "bf16": ("compressed keys",),
    },
}
"""By what can become each other: how numbers are stored, and the formats that store them so.

A format that is not here becomes none but itself.
"""

KEPT: Final = {
    ("bf16", "f32"),
    ("f16", "f32"),
    *itertools.product(("e4m3 of a layer", "e5m2 of a layer"), ("bf16", "f16", "f32")),
    *itertools.product(("i8 of a head", "e4m3 of a head", "u4 of a head"), ("f32",)),
    *itertools.product(("e2m1 by e4m3",), ("bf16", "f16", "f32")),
    ("e4m3 by ue8m0", "bf16"),
    ("e2m1 by ue8m0", "bf16"),
}
"""The conversions that keep every value."""

FOUND: Final = {
    name: (sort, numbers)
    for sort, stored in NUMBERS.items()
    for numbers, names in stored.items()
    for name in names
}


def expected(src: str, dst: str) -> str:
    if src == dst:
        return "identical"
    (sort, ours), (other, theirs) = (FOUND.get(name, (name, "")) for name in (src, dst))
    if sort != other:
        return "refused"
    return "lossless" if ours == theirs or (ours, theirs) in KEPT else "lossy"


@pytest.mark.parametrize("src", FORMATS)
def test_every_pair(src: str) -> None:
    source = FORMATS[src][0]()
    found = {dst: compare(source, make()).verdict for dst, (make, _) in FORMATS.items()}
    assert found == {dst: expected(src, dst) for dst in FORMATS}


def test_the_table_knows_the_formats() -> None:
    assert set(FOUND) <= set(FORMATS)
    scales = {numbers for _, numbers in FOUND.values()}
    assert {each for pair in KEPT for each in pair} <= scales


def latent(dtype: str = "bf16") -> Descriptor:
    """Rows of 512 elements in place of `528`."""
    shape = Shape(1, 128, 512)
    roles = regions([[Field("latent", dtype, "D", 512)]], [("N", 32)])
    return described("mla", roles, page_bytes(roles), shape, PLAIN, tokens_per_state=(4, 1))


CONVERTED: Final[dict[str, tuple[Descriptor, Descriptor, str, str]]] = {
    "fp8 by a power of two": (
        formats.fp8("e4m3", 0.25, 0.25),
        formats.fp8("e4m3fnuz", 0.5, 0.5),
        "lossless",
        "codec.params.scales.k[0]",
    ),
    "fp8 by a power of two that does not hold": (
        formats.fp8(k=0.25),
        formats.fp8(k=0.5),
        "lossy",
        "codec.params.scales.k[0]",
    ),
    "fp8 by anything else": (
        formats.fp8(v=0.25),
        formats.fp8(v=0.75),
        "lossy",
        "codec.params.scales.v[0]",
    ),
    "a scale of V alone": (formats.fp8(v=0.75), formats.plain(), "lossy", "codec.id"),
    "a global scale": (formats.nvfp4(k=0.75), formats.plain(), "lossy", "codec.id"),
    "a global scale of two's power": (
        formats.nvfp4(k=0.5, v=2.0),
        formats.plain(),
        "lossless",
        "codec.id",
    ),
    "another global scale": (
        formats.nvfp4(k=0.5),
        formats.nvfp4_slots(k=0.25),
        "lossy",
        "codec.params.scales.k[0]",
    ),
    "powers of two": (
        formats.ultraquant(is_rotated=False),
        formats.plain(),
        "lossless",
        "codec.id",
    ),
    "scales of another type": (
        formats.ultraquant(is_rotated=False),
        formats.nvfp4(),
        "lossy",
        "codec.params.scales.k[0]",
    ),
    "528": (formats.v41_mxfp8(), latent(), "lossless", "codec.id"),
    "288": (formats.v41_nvfp4(), latent(), "lossless", "codec.id"),
    "into 528": (latent(), formats.v41_mxfp8(), "lossy", "codec.id"),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_conversions_by_name(name: str) -> None:
    src, dst, verdict, path = CONVERTED[name]
    (finding,) = compare(src, dst).findings
    assert (finding.verdict, finding.path) == (verdict, f"groups[0].{path}")


def test_groups_of_another_size_are_told_at_their_scales() -> None:
    small = formats.nvfp4()
    large = regions(
        [
            [field]
            for side in "kv"
            for field in (
                Field(side, "e2m1", "D", 128),
                Field(f"{side}_group_scale", "e4m3", "G", 4),
            )
        ],
        [("H", 8), ("N", 16)],
    )
    (group,) = small.groups
    dst = replace(small, groups=(replace(group, roles=tuple(large)),))
    (finding,) = compare(small, dst).findings
    assert (finding.verdict, finding.path) == ("lossy", "groups[0].roles[1].shape.G")


def changed(make: Callable[[], Descriptor], **fields: Any) -> Descriptor:
    d = make()
    return replace(d, groups=(replace(d.groups[0], **fields),))


def params(make: Callable[[], Descriptor], **values: Any) -> Descriptor:
    d = make()
    codec = d.groups[0].codec
    return changed(make, codec=replace(codec, params=codec.params | values))


REFUSED: Final[dict[str, tuple[Descriptor, Descriptor, str, str]]] = {
    "a rotation on one side": (
        formats.int4(),
        formats.plain(),
        "codec.params.rotation.k",
        f"rotation of K: {SIGNS} at the source, none at the destination",
    ),
    "a rotation of V alone": (
        formats.ultraquant(),
        formats.int4(),
        "codec.params.rotation.v",
        f"rotation of V: none at the source, {SIGNS} at the destination",
    ),
    "another rotation": (
        params(formats.ultraquant, **{"rotation.k": "h"}),
        formats.ultraquant(),
        "codec.params.rotation.k",
        f"rotation of K: h at the source, {SIGNS} at the destination",
    ),
    "codes and keys": (
        formats.turboquant(),
        formats.plain(),
        "roles",
        "what a page holds: K codes and K norms and V codes and V scales and V zeros at the "
        "source, K and V at the destination",
    ),
    "codes of other tables": (
        params(formats.turboquant, tables="a"),
        params(formats.turboquant, tables="b"),
        "codec.params.tables",
        "codec's tables: a at the source, b at the destination",
    ),
    "codes of other bits, by name": (
        params(formats.turboquant, tables="a", value_bits=3),
        formats.turboquant(),
        "codec.params.tables",
        f"codec's tables: a at the source, {SIGNS} at the destination",
    ),
    "latents and heads": (
        formats.mla(),
        formats.plain(),
        "kind",
        "kind: mla at the source, full at the destination: K and V of heads come from latents by "
        "the model's weights alone",
    ),
    "compressed states and tokens": (
        formats.v4_c4_bf16(),
        changed(formats.v4_c4_bf16, tokens_per_state=(1, 1), tokens_per_block=64),
        "tokens_per_state",
        "tokens of a state: 4 at the source, 1 at the destination",
    ),
    "what chooses, from what is chosen": (
        formats.plain(shape=Shape(1, 64)),
        formats.indexer(),
        "roles",
        "what a page holds: K and V at the source, index K at the destination",
    ),
    "dropped tokens": (
        changed(formats.plain, kind="sliding_window", window=8),
        formats.plain(),
        "kind",
        "kind: sliding_window at the source, full at the destination: the source has dropped the "
        "tokens before its window",
    ),
    "a state elsewhere": (
        formats.recurrent(),
        changed(formats.recurrent, tokens_per_block=32, tokens_per_state=(32, 1)),
        "tokens_per_state",
        "tokens of a state: 16 at the source, 32 at the destination: a state cannot be had at "
        "another position",
    ),
    "a ring of another size": (
        formats.key_ring(),
        changed(formats.key_ring, tokens_per_block=16),
        "tokens_per_block",
        "tokens of a block: 8 at the source, 16 at the destination: a ring is one block",
    ),
    "rotary parts apart": (
        formats.v4_c4(),
        formats.v41_mxfp8(),
        "roles",
        "what a page holds: latent and rope at the source, latent at the destination",
    ),
    "pages of another writer": (
        formats.opaque("a"),
        formats.opaque("b"),
        "opaque",
        "who writes the pages: a at the source, b at the destination: what nobody has shown to be "
        "true moves only between those who say the same",
    ),
    "pages that one side knows": (
        changed(formats.plain, opaque="a"),
        formats.plain(),
        "opaque",
        "who writes the pages: a at the source, known at the destination: what nobody has shown to "
        "be true moves only between those who say the same",
    ),
    "the writer before the kind": (
        changed(formats.plain, opaque="a"),
        changed(formats.mla, opaque="b"),
        "opaque",
        "who writes the pages: a at the source, b at the destination: what nobody has shown to be "
        "true moves only between those who say the same",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_by_name(name: str) -> None:
    src, dst, path, reason = REFUSED[name]
    (finding,) = compare(src, dst).findings
    assert (finding.verdict, finding.path) == ("refused", f"groups[0].{path}")
    assert finding.reason == reason


def opaque(make: Callable[[], Descriptor], **fields: Any) -> Descriptor:
    return changed(make, opaque="someone", **fields)


def test_what_nobody_has_shown_moves_as_it_is() -> None:
    assert compare(formats.opaque(), formats.opaque()).verdict == "identical"
    assert compare(opaque(formats.plain), opaque(formats.plain)).verdict == "identical"
    window = opaque(formats.plain, kind="sliding_window", window=8)
    full = opaque(formats.plain, window=8)
    assert compare(full, window).verdict == "identical"


@pytest.mark.parametrize(
    ("other", "path"),
    [
        (formats.cpu, "roles[0].terms"),
        (lambda: formats.plain("f32"), "roles[0].dtype"),
        (lambda: formats.plain(shape=Shape(tokens=32)), "tokens_per_block"),
        (lambda: formats.plain(shape=Shape(heads=4)), "owner.heads"),
        (lambda: formats.plain(shape=Shape(heads=4, tokens=32)), "tokens_per_block"),
        (formats.nvfp4, "codec.id"),
    ],
)
def test_what_nobody_has_shown_is_refused_at_the_first_field(
    other: Callable[[], Descriptor], path: str
) -> None:
    dst = opaque(other)
    owner = replace(dst.groups[0].owner, heads=(0, dst.groups[0].num_heads, 8))
    dst = replace(dst, groups=(replace(dst.groups[0], owner=owner),))
    (finding,) = compare(opaque(formats.plain), dst).findings
    assert (finding.verdict, finding.path) == ("refused", f"groups[0].{path}")
    note = ": pages whose inside nobody has shown move only as they are"
    assert finding.reason.endswith(note)


# --- groups of one layer


def beside(*made: Descriptor) -> Descriptor:
    """Groups of the same layer, each in a pool of its own."""
    pools = tuple(replace(d.pools[0], id=f"p{at}") for at, d in enumerate(made))
    groups = []
    for at, d in enumerate(made):
        (group,) = d.groups
        places = tuple(replace(place, pools=(f"p{at}",)) for place in group.places)
        groups.append(replace(group, id=f"g{at}", table=at, places=places))
    return replace(made[0], pools=pools, groups=tuple(groups))


def met(src: Descriptor, dst: Descriptor) -> dict[str, tuple[str, str]]:
    return {each.dst: (each.src, each.verdict) for each in compare(src, dst).findings}


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (formats.plain(), formats.cross()),
        (formats.compressed_keys(), formats.key_ring()),
        (formats.opaque("a"), formats.opaque("b")),
        (formats.v4_compressor_c4(), formats.compressor_ring()),
        (formats.mla(), formats.indexer()),
    ],
)
def test_groups_of_a_layer_meet_those_of_their_sort(one: Descriptor, two: Descriptor) -> None:
    both, turned = beside(one, two), beside(two, one)
    assert met(both, both) == {"g0": ("g0", "identical"), "g1": ("g1", "identical")}
    assert met(both, turned) == {"g0": ("g1", "identical"), "g1": ("g0", "identical")}


def test_of_what_finds_no_partner_the_comparison_says_why() -> None:
    src, dst = (
        beside(formats.mla(), formats.opaque("a")),
        beside(formats.mla(), formats.opaque("b")),
    )
    assert met(src, dst) == {"g0": ("g0", "identical"), "g1": ("g1", "refused")}
