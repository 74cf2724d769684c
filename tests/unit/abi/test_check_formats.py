"""Every known format passes, and what its codec, roles and parameters can get wrong is named."""

from collections.abc import Callable
from typing import Any

import pytest
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_formats import FORMATS, SIGNS
from support.abi_pages import PLAIN, Field, Shape, cells, described, page_bytes, regions
from transload_abi.check import check
from transload_abi.errors import (
    Contradiction,
    DescriptorError,
    LimitExceeded,
    MalformedDescriptor,
    UnknownPart,
)
from transload_abi.floats import f32
from transload_abi.types import Codec, Descriptor, Kind, Owner, Role


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_passes_with_pages_of_its_size(name: str) -> None:
    make, num_bytes = FORMATS[name]
    d = make()
    check(d)
    assert d.groups[0].places[0].page_bytes == num_bytes


def changed(make: Callable[[], Descriptor], **fields: Any) -> Descriptor:
    d = make()
    return replace(d, groups=(replace(d.groups[0], **fields),))


def params(make: Callable[[], Descriptor], **values: Any) -> Descriptor:
    codec = make().groups[0].codec
    return changed(make, codec=replace(codec, params=codec.params | values))


def without(make: Callable[[], Descriptor], name: str) -> Descriptor:
    codec = make().groups[0].codec
    kept = {key: value for key, value in codec.params.items() if key != name}
    return changed(make, codec=replace(codec, params=kept))


def with_roles(make: Callable[[], Descriptor], *roles: Role) -> Descriptor:
    """Roles in place of those of the same name."""
    named = {role.role: role for role in roles}
    return changed(make, roles=tuple(named.get(role.role, role) for role in make().groups[0].roles))


def role(make: Callable[[], Descriptor], name: str) -> Role:
    found = make().groups[0].role(name)
    assert found
    return found


def latents(inline: str, num_groups: int, dtype: str = "e4m3", rope: str = "bf16") -> Descriptor:
    fields = [
        Field("latent", dtype, "D", 512),
        Field("latent_scale", inline, "G", num_groups),
        Field("rope", rope, "D", 64),
    ]
    shape = Shape(1, 64)
    roles = cells(fields, [("N", 64)])
    return described("mla", roles, page_bytes(roles), shape, Codec("block_scaled"))


REFUSED: dict[str, tuple[Descriptor, type[DescriptorError], str, str]] = {
    "scales of K alone": (
        without(formats.nvfp4, "scales.v"),
        Contradiction,
        "codec.params.scales.v",
        "expected a list of 1 scales, one per layer",
    ),
    "scales of too many layers": (
        params(formats.nvfp4, **{"scales.k": [f32(1)] * 2}),
        Contradiction,
        "codec.params.scales.k",
        "expected a list of 1 scales, one per layer",
    ),
    "a scale of zero": (
        params(formats.nvfp4, **{"scales.k": ["f32:00000000"]}),
        Contradiction,
        "codec.params.scales.k[0]",
        "f32:00000000 is not above zero",
    ),
    "a scale where the page has none": (
        params(formats.ds_mla_352, **{"scales.rope": [f32(1)]}),
        UnknownPart,
        "codec.params.scales.rope",
        "codec 'block_scaled' has no such parameter",
    ),
    "scales that the codec does not know": (
        params(formats.int4, **{"scales.k": [f32(1)], "scales.v": [f32(1)]}),
        UnknownPart,
        "codec.params.scales.k",
        "codec 'int4_zero_point' has no such parameter",
    ),
    "a rotation of nothing": (
        params(formats.int4, **{"rotation.k": ""}),
        Contradiction,
        "codec.params.rotation.k",
        "expected a text that is not empty",
    ),
    "a rotation in numbers": (
        params(formats.int4, **{"rotation.k": 7}),
        Contradiction,
        "codec.params.rotation.k",
        "expected a text that is not empty",
    ),
    "a rotation like a float": (
        params(formats.int4, **{"rotation.k": "f32:1"}),
        MalformedDescriptor,
        "codec.params.rotation.k",
        "expected f32: or f64: and hex digits, got 'f32:1'",
    ),
    "a rotation where the page has no scales": (
        params(formats.ds_mla_352, **{"rotation.rope": SIGNS}),
        UnknownPart,
        "codec.params.rotation.rope",
        "codec 'block_scaled' has no such parameter",
    ),
    "a rotation under a codec that has none": (
        params(formats.per_token_head, **{"rotation.k": SIGNS}),
        UnknownPart,
        "codec.params.rotation.k",
        "codec 'per_token_head' has no such parameter",
    ),
    "no tables": (
        without(formats.turboquant, "tables"),
        Contradiction,
        "codec.params.tables",
        "expected a text that is not empty",
    ),
    "tables without a name": (
        params(formats.turboquant, tables=""),
        Contradiction,
        "codec.params.tables",
        "expected a text that is not empty",
    ),
    "codes of no bits": (
        params(formats.turboquant, key_bits=0),
        Contradiction,
        "codec.params.key_bits",
        "expected 1 to 8",
    ),
    "codes of nine bits": (
        params(formats.turboquant, value_bits=9),
        Contradiction,
        "codec.params.value_bits",
        "expected 1 to 8",
    ),
    "codes of bits in words": (
        params(formats.turboquant, value_bits="4"),
        Contradiction,
        "codec.params.value_bits",
        "expected 1 to 8",
    ),
    "codes of untold bits": (
        without(formats.turboquant, "key_bits"),
        Contradiction,
        "codec.params.key_bits",
        "expected 1 to 8",
    ),
    "groups that do not divide": (
        latents("ue8m0", 7),
        Contradiction,
        "roles[0].shape",
        "7 scales for 512 elements: expected two or more for each",
    ),
    "a scale for each element": (
        latents("ue8m0", 512),
        Contradiction,
        "roles[0].shape",
        "512 scales for 512 elements: expected two or more for each",
    ),
    "656 under another name": (
        latents("f32", 4),
        Contradiction,
        "codec.id",
        "expected 'fp8_ds_mla_656' for such roles",
    ),
    "a dtype that the codec lacks": (
        latents("bf16", 4),
        Contradiction,
        "roles[1].dtype",
        "codec 'block_scaled' has ['e4m3', 'f32', 'ue8m0'], got 'bf16'",
    ),
    "pages of nobody": (
        changed(formats.opaque, opaque=""),
        Contradiction,
        "opaque",
        "expected a text where the codec is opaque",
    ),
    "half a nibble": (
        with_roles(formats.int4, replace(role(formats.int4, "k"), base_bits=2)),
        Contradiction,
        "roles[0].base_bits",
        "expected a multiple of 4",
    ),
    "nibbles two bits apart": (
        with_roles(
            formats.int4,
            replace(
                role(formats.int4, "k"),
                terms=(*role(formats.int4, "k").terms[:-1], ("D", 1, 128, 6)),
            ),
        ),
        Contradiction,
        "roles[0].terms[2]",
        "expected a multiple of 4 bits, got 6",
    ),
    "pages too long to describe": (
        formats.opaque(page=(1 << 20) + 1),
        LimitExceeded,
        "roles[0].shape.D",
        "expected at most 1048576, got 1048577",
    ),
    "codes beside keys": (
        changed(
            formats.turboquant,
            roles=(*formats.turboquant().groups[0].roles, formats.plain().groups[0].roles[0]),
        ),
        Contradiction,
        "roles",
        "codec 'turboquant' does not have the roles "
        "['k', 'k_code', 'k_norm', 'v_code', 'v_scale', 'v_zero']",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_is_refused_by_name(name: str) -> None:
    d, error, path, reason = REFUSED[name]
    with pytest.raises(error) as caught:
        check(d)
    assert type(caught.value) is error
    assert caught.value.path == f"groups[0].{path}"
    assert str(caught.value) == f"groups[0].{path}: {reason}"


@pytest.mark.parametrize(
    "d",
    [
        changed(formats.nvfp4, codec=Codec("block_scaled")),
        params(formats.nvfp4, **{"rotation.v": "hadamard"}),
        changed(formats.int4, codec=Codec("int4_zero_point", {"rotation.v": SIGNS})),
        params(lambda: latents("f32", 4), **{"scales.latent": [f32(1)]}),
        params(lambda: latents("f32", 4), **{"rotation.latent": SIGNS}),
        latents("f32", 4, dtype="e5m2"),
        latents("f32", 4, rope="f16"),
        latents("f32", 8),
        latents("ue8m0", 4, rope="e5m2"),
        latents("e4m3", 256, dtype="e2m1"),
        changed(formats.plain, opaque="someone"),
        with_roles(formats.int4, replace(role(formats.int4, "k"), base_bits=0)),
    ],
)
def test_what_may_be_passes(d: Descriptor) -> None:
    check(d)


def test_nibbles_may_begin_amid_a_byte() -> None:
    k, v = cells([Field("k", "u4", "D", 3), Field("v", "u4", "D", 3)], [("H", 1), ("N", 2)])
    scale = regions([[Field("k_scale", "f32")], [Field("v_scale", "f32")]], [("H", 1), ("N", 2)])
    moved = [replace(each, base_bits=each.base_bits + 48) for each in scale]
    roles = [k, v, *moved]
    assert v.base_bits == 12
    check(described("full", roles, 22, Shape(1, 2), Codec("int4_zero_point")))


KINDS: list[tuple[Callable[[], Descriptor], dict[str, Any], str]] = [
    (formats.turboquant, {"kind": "cross"}, ""),
    (formats.turboquant, {"kind": "mla"}, "'latent'"),
    (formats.indexer, {"kind": "sliding_window", "window": 8}, ""),
    (formats.indexer, {"kind": "chunked_local", "window": 8}, ""),
    (formats.indexer, {"kind": "mla"}, "'latent'"),
    (formats.mla, {"kind": "full"}, "'k' or 'k_code' or 'index_k'"),
    (formats.compressor_ring, {"kind": "full", "window": 0}, "'k' or 'k_code' or 'index_k'"),
    (
        lambda: formats.plain(shape=Shape(tokens=1)),
        {"kind": "recurrent"},
        "'ssm' or 'ssm_h' or 'conv_q' or 'conv_k' or 'conv_v' or 'conv_x' or 'conv_b' or 'conv_c'",
    ),
    (formats.v4_compressor_c4, {"kind": "sliding_window_mla"}, "'latent'"),
    (
        formats.v4_compressor_c4,
        {"kind": "chunked_local"},
        "'k' or 'k_code' or 'index_k'",
    ),
]


@pytest.mark.parametrize(("make", "fields", "needs"), KINDS)
def test_a_kind_has_one_of_its_roles(
    make: Callable[[], Descriptor], fields: dict[str, Any], needs: str
) -> None:
    d = changed(make, **fields)
    if not needs:
        check(d)
        return
    with pytest.raises(Contradiction, match=f"^groups.0..roles: kind .* needs the role {needs}$"):
        check(d)


@pytest.mark.parametrize("part", ["conv_q", "conv_k", "conv_v", "conv_x", "conv_b", "conv_c"])
def test_each_part_of_a_convolution_may_be_alone(part: str) -> None:
    roles = cells([Field(part, "bf16", "D", 4)], [("H", 2), ("N", 1)])
    shape = Shape(2, 16)
    check(described("recurrent", roles, 16, shape, PLAIN, tokens_per_state=(16, 1)))


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        ("full", {}),
        ("sliding_window", {"window": 8}),
        ("chunked_local", {"window": 8}),
        ("mla", {}),
        ("sliding_window_mla", {"window": 8}),
        ("cross", {}),
        ("recurrent", {"tokens_per_state": (16, 1)}),
        ("ring", {"window": 8}),
    ],
)
@pytest.mark.parametrize("heads", [(0, 1, 1), (2, 4, 8)])
def test_pages_that_nobody_describes_go_with_any_kind_and_heads(
    kind: Kind, fields: dict[str, Any], heads: tuple[int, int, int]
) -> None:
    check(changed(formats.opaque, kind=kind, owner=Owner(heads), **fields))


def beside(*made: Descriptor) -> Descriptor:
    """Groups of the same layer, each in a pool of its own."""
    pools = tuple(replace(d.pools[0], id=f"p{at}") for at, d in enumerate(made))
    groups = []
    for at, d in enumerate(made):
        (group,) = d.groups
        places = tuple(replace(place, pools=(f"p{at}",)) for place in group.places)
        groups.append(replace(group, id=f"g{at}", table=at, places=places))
    return replace(made[0], pools=pools, groups=tuple(groups))


@pytest.mark.parametrize(
    ("one", "two"),
    [
        (formats.plain(), formats.cross()),
        (formats.compressed_keys(), formats.key_ring()),
        (formats.opaque("a"), formats.opaque("b")),
        (formats.opaque("a"), formats.plain()),
    ],
)
def test_a_layer_may_hold_a_role_in_two_ways(one: Descriptor, two: Descriptor) -> None:
    check(beside(one, two))


@pytest.mark.parametrize(
    ("one", "two", "name"),
    [
        (formats.plain(), formats.fp8(), "k"),
        (formats.plain(), changed(formats.plain, opaque="a"), "k"),
        (formats.opaque("a"), formats.opaque("a", 8), "page"),
        (formats.key_ring(), formats.key_ring(16), "index_k"),
        (formats.cross(), formats.cross(), "k"),
    ],
)
def test_and_not_twice_in_the_same(one: Descriptor, two: Descriptor, name: str) -> None:
    words = rf"^groups\[1\]\.layers: '{name}' of layer 0 is in groups\[0\] too$"
    with pytest.raises(Contradiction, match=words):
        check(beside(one, two))
