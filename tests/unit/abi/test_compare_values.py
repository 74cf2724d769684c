"""Which conversions keep every value: by rule, and counted out over all elements."""

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from support.abi_placements import MODEL
from transload_abi.compare import compare
from transload_abi.compare_values import Values, change
from transload_abi.floats import f32
from transload_abi.oracle_numbers import bits_type, decode, encode
from transload_abi.types import VERSION, Codec, Descriptor, Group, Owner, Param, Place, Pool, Role

FP8 = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")


def plain(dtype: str) -> Values:
    return Values("none", dtype)


def scaled(dtype: str, scale: float) -> Values:
    return Values("fp8_per_tensor", dtype, scale=scale)


def per_head(dtype: str) -> Values:
    return Values("per_token_head", dtype, "f32")


DS_MLA = Values("fp8_ds_mla_656", "e4m3", "f32", 128)
INT4 = Values("int4_zero_point", "u4", "f32")


def grouped(dtype: str, inline: str, scale: float | None = None, share: int = 32) -> Values:
    return Values("block_scaled", dtype, inline, share, scale)


ROWS: list[tuple[Values, Values, str]] = [
    # The same elements.
    (plain("bf16"), plain("bf16"), "none"),
    (plain("bf16"), Values("fp8_ds_mla_656", "bf16"), "none"),
    (scaled("e4m3", 0.3), scaled("e4m3", 0.3), "none"),
    (per_head("i8"), per_head("i8"), "none"),
    (DS_MLA, DS_MLA, "none"),
    # Wider and narrower floats.
    (plain("bf16"), plain("f32"), "lossless"),
    (plain("f16"), plain("f32"), "lossless"),
    (plain("f32"), plain("bf16"), "lossy"),
    (plain("f32"), plain("f16"), "lossy"),
    (plain("f16"), plain("bf16"), "lossy"),
    (plain("bf16"), plain("f16"), "lossy"),
    # A scale for each layer.
    (scaled("e4m3", 0.3), plain("f32"), "lossless"),
    (scaled("e4m3", 0.3), plain("bf16"), "lossy"),
    (scaled("e4m3", 0.5), plain("bf16"), "lossless"),
    (scaled("e4m3", 0.5), plain("f16"), "lossless"),
    (scaled("e4m3", 2.0**7), plain("f16"), "lossless"),
    (scaled("e4m3", 2.0**8), plain("f16"), "lossy"),
    (scaled("e4m3", 2.0**-15), plain("f16"), "lossless"),
    (scaled("e4m3", 2.0**-16), plain("f16"), "lossy"),
    (scaled("e5m2", 1.0), plain("f16"), "lossless"),
    (scaled("e5m2", 2.0), plain("f16"), "lossy"),
    (scaled("e5m2", 2.0**-8), plain("f16"), "lossless"),
    (scaled("e5m2", 2.0**-9), plain("f16"), "lossy"),
    (scaled("e4m3fnuz", 2.0**8), plain("f16"), "lossless"),
    (scaled("e4m3", 2.0**119), plain("bf16"), "lossless"),
    (scaled("e4m3", 2.0**120), plain("bf16"), "lossy"),
    (scaled("e4m3", 2.0**-124), plain("bf16"), "lossless"),
    (scaled("e4m3", 2.0**-125), plain("bf16"), "lossy"),
    # Between scales and between 8-bit floats.
    (scaled("e4m3", 0.5), scaled("e4m3", 0.25), "lossy"),
    (scaled("e4m3", 0.25), scaled("e4m3", 0.5), "lossy"),
    (scaled("e4m3", 0.25), scaled("e4m3fnuz", 0.5), "lossless"),
    (scaled("e4m3", 0.3), scaled("e4m3fnuz", 2 * 0.3), "lossless"),
    (scaled("e4m3", 0.3 * 2.0**-100), scaled("e4m3fnuz", 0.3 * 2.0**-99), "lossy"),
    (scaled("e4m3", 2.0**-149), scaled("e4m3fnuz", 2.0**-148), "lossless"),
    (scaled("e4m3fnuz", 0.5), scaled("e4m3", 0.25), "lossy"),
    (scaled("e4m3", 0.3), scaled("e4m3fnuz", 0.7), "lossy"),
    (scaled("e4m3", 0.5), scaled("e5m2", 0.5), "lossy"),
    (scaled("e5m2", 0.5), scaled("e4m3", 0.5), "lossy"),
    (plain("bf16"), scaled("e4m3", 1.0), "lossy"),
    # Scales in the page.
    (per_head("i8"), plain("f32"), "lossless"),
    (per_head("e4m3"), plain("f32"), "lossless"),
    (per_head("i8"), plain("bf16"), "lossy"),
    (per_head("e4m3"), plain("f16"), "lossy"),
    (per_head("i8"), per_head("e4m3"), "lossy"),
    (per_head("e4m3"), scaled("e4m3", 1.0), "lossy"),
    (scaled("e4m3", 1.0), per_head("e4m3"), "lossy"),
    (plain("bf16"), per_head("i8"), "lossy"),
    (DS_MLA, plain("f32"), "lossless"),
    (DS_MLA, plain("bf16"), "lossy"),
    (DS_MLA, scaled("e4m3", 1.0), "lossy"),
    (plain("bf16"), DS_MLA, "lossy"),
    (plain("f32"), DS_MLA, "lossy"),
    # Groups of elements under scales in the page.
    (grouped("e2m1", "e4m3"), grouped("e2m1", "e4m3"), "none"),
    (grouped("e2m1", "e4m3", 0.3), grouped("e2m1", "e4m3", 0.3), "none"),
    (grouped("e2m1", "e4m3", 0.5), grouped("e2m1", "e4m3", 0.25), "lossy"),
    (grouped("e2m1", "e4m3"), grouped("e2m1", "e4m3", share=16), "lossy"),
    (grouped("e2m1", "ue8m0"), grouped("e2m1", "e4m3"), "lossy"),
    (grouped("e4m3", "f32", share=128), DS_MLA, "lossy"),
    (plain("bf16"), grouped("e2m1", "ue8m0"), "lossy"),
    (grouped("e2m1", "e4m3"), plain("bf16"), "lossless"),
    (grouped("e2m1", "e4m3"), plain("f16"), "lossless"),
    (grouped("e2m1", "e4m3", 0.5), plain("bf16"), "lossless"),
    (grouped("e2m1", "e4m3", 0.3), plain("bf16"), "lossy"),
    (grouped("e2m1", "e4m3", 2.0**6), plain("f16"), "lossy"),
    (grouped("e2m1", "e4m3", 0.3), plain("f32"), "lossless"),
    (grouped("e4m3", "e4m3"), plain("bf16"), "lossless"),
    (grouped("e2m1", "e4m3"), scaled("e4m3", 1.0), "lossy"),
    (grouped("e4m3", "f32"), plain("bf16"), "lossy"),
    (grouped("e4m3", "ue8m0"), plain("bf16"), "lossless"),
    (grouped("e2m1", "ue8m0"), plain("bf16"), "lossless"),
    (grouped("e2m1", "ue8m0", 2.0**-100), plain("bf16"), "lossless"),
    (grouped("e2m1", "ue8m0", 0.3), plain("bf16"), "lossy"),
    (grouped("e2m1", "ue8m0"), plain("f16"), "lossy"),
    (grouped("e2m1", "ue8m0"), scaled("e5m2", 1.0), "lossy"),
    (grouped("e2m1", "ue8m0"), plain("f32"), "lossless"),
    (grouped("i8", "e4m3"), plain("bf16"), "lossy"),
    # Four bits and a zero point.
    (INT4, INT4, "none"),
    (INT4, plain("f32"), "lossless"),
    (INT4, plain("bf16"), "lossy"),
    (plain("bf16"), INT4, "lossy"),
    # A rotary part among scaled latents.
    (Values("block_scaled", "e4m3"), Values("block_scaled", "e4m3"), "none"),
    (Values("block_scaled", "e4m3"), plain("bf16"), "lossless"),
    (Values("block_scaled", "e4m3"), scaled("e4m3", 1.0), "lossless"),
    (scaled("e4m3", 1.0), Values("block_scaled", "e4m3"), "lossless"),
    (plain("bf16"), Values("block_scaled", "e4m3"), "lossy"),
    # What nobody reads moves as it is.
    (Values("turboquant", "u8"), Values("turboquant", "u8"), "none"),
    (plain("i64"), plain("i64"), "none"),
]


@pytest.mark.parametrize(
    ("src", "dst", "expected"),
    ROWS,
    ids=lambda each: each.words.replace(" ", "_") if isinstance(each, Values) else each,
)
def test_each_conversion(src: Values, dst: Values, expected: str) -> None:
    assert change(src, dst) == expected


def elements(dtype: str) -> np.ndarray:
    """All finite values of a type of at most 16 bits."""
    type_ = bits_type(dtype)
    values = decode(np.arange(1 << (8 * type_.itemsize)).astype(type_), dtype)
    return values[np.isfinite(values)]


def is_kept(values: np.ndarray, dtype: str) -> bool:
    if not np.isfinite(values).all():
        return False
    return bool((decode(encode(values, dtype), dtype) == values).all())


@pytest.mark.parametrize(
    ("src", "dst"), [*itertools.product(("f16", "bf16"), ("f16", "bf16", "f32"))]
)
def test_wider_types_hold_all_elements(src: str, dst: str) -> None:
    assert is_kept(elements(src), dst) == (change(plain(src), plain(dst)) != "lossy")


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(FP8, ("f16", "bf16"))])
def test_every_power_of_two(src: str, dst: str) -> None:
    """The rule's range is neither too wide nor too narrow, by one exponent."""
    values, seen = elements(src), set()
    for exponent in range(-149, 128):
        with np.errstate(over="ignore"):
            products = values * np.float32(2.0**exponent)
        expected = "lossless" if is_kept(products, dst) else "lossy"
        assert change(scaled(src, 2.0**exponent), plain(dst)) == expected, exponent
        seen.add(expected)
    assert seen == {"lossless", "lossy"}


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.sampled_from(FP8), FLOATS, st.sampled_from(("f16", "bf16")))
def test_lossless_is_never_said_of_a_loss(src: str, scale: float, dst: str) -> None:
    if change(scaled(src, scale), plain(dst)) == "lossless":
        with np.errstate(all="ignore"):
            assert is_kept(elements(src) * np.float32(scale), dst)


def exact(dtype: str) -> set[float]:
    """All finite values of a type of at most 16 bits, as Python's floats."""
    if dtype == "e2m1":
        return {sign * each for sign in (1, -1) for each in (0, 0.5, 1, 1.5, 2, 3, 4, 6)}
    return {float(value) for value in elements(dtype)}


@pytest.mark.parametrize(("src", "dst"), [*itertools.product(FP8, repeat=2)])
def test_8_bit_floats_under_every_ratio_of_scales(src: str, dst: str) -> None:
    held = exact(dst)
    for exponent in range(-20, 21):
        source, into = scaled(src, 2.0**exponent), scaled(dst, 1.0)
        is_kept = {value * 2.0**exponent for value in exact(src)} <= held
        expected = "lossless" if is_kept else "lossy"
        assert change(source, into) == ("none" if source == into else expected)


@pytest.mark.parametrize("src", ["e2m1", *FP8])
@pytest.mark.parametrize("dst", ["bf16", "f16"])
def test_products_with_e4m3_scales_under_every_power_of_two(src: str, dst: str) -> None:
    products, held = {a * b for a in exact(src) for b in exact("e4m3")}, exact(dst)
    seen = set()
    for exponent in (*range(-140, -90), *range(-20, 21), *range(100, 128)):
        is_kept = {value * 2.0**exponent for value in products} <= held
        expected = "lossless" if is_kept else "lossy"
        assert change(grouped(src, "e4m3", 2.0**exponent), plain(dst)) == expected, exponent
        seen.add(expected)
    spans_too_much = src.startswith("e5m2") and dst == "f16"
    assert seen == ({"lossy"} if spans_too_much else {"lossless", "lossy"})


@given(
    st.floats(2.0**-99, 2.0**99, width=32), st.integers(-4, 4), st.sampled_from([*FP8]), st.data()
)
def test_scales_that_are_no_powers_of_two_find_every_element_again(
    scale: float, exponent: int, src: str, data: st.DataObject
) -> None:
    dst = data.draw(st.sampled_from(FP8))
    other = scale * 2.0**exponent
    if change(scaled(src, scale), scaled(dst, other)) == "lossless":
        values = elements(src) * np.float32(scale)
        again = decode(encode(values / np.float32(other), dst), dst) * np.float32(other)
        assert (again == values).all()


def test_words() -> None:
    told = [each.words for each in (plain("bf16"), scaled("e4m3", 0.25), per_head("i8"), DS_MLA)]
    told += [each.words for each in (grouped("e2m1", "e4m3", 0.5), grouped("e4m3", "ue8m0"))]
    assert told == [
        "bf16",
        "e4m3 with scale 0.25",
        "i8 with a scale per token and head",
        "e4m3 with a scale per token and 128 elements",
        "e2m1 with an e4m3 scale per token and 32 elements and scale 0.5",
        "e4m3 with a ue8m0 scale per token and 32 elements",
    ]


def mla(codec: str, latent: str, rope: str, scale: float = 0.0) -> Descriptor:
    """Two layers of blocks of four tokens: 512 latent and 64 rotary elements."""
    sizes = {"f32": 32, "f16": 16, "bf16": 16, "e4m3": 8}
    parts = [("latent", latent, {"D": 512}), ("rope", rope, {"D": 64})]
    if codec == "fp8_ds_mla_656":
        parts.insert(1, ("latent_scale", "f32", {"G": 4}))
    row = sum(sizes[dtype] * size for _, dtype, shape in parts for size in shape.values())
    roles, base = [], 0
    for name, dtype, shape in parts:
        ((axis, size),) = shape.items()
        bits = sizes[dtype]
        terms = (("N", 1, 4, row), (axis, 1, size, bits))
        roles.append(Role(name, dtype, bits, {"N": 4, **shape}, terms, base))
        base += size * bits
    params: dict[str, Param] = {}
    if scale:
        params = {f"scales.{name}": [f32(scale)] * 2 for name in ("latent", "rope")}
    page = row // 2
    group = Group(
        id="mla",
        kind="mla",
        layers=(0, 1),
        tokens_per_block=4,
        places=(Place(("kv",), page, 3 * page),),
        roles=tuple(roles),
        codec=Codec(codec, params),
        owner=Owner(),
    )
    return Descriptor(VERSION, MODEL, (Pool("kv", "device", 6 * page, 3),), (group,))


MLA_ROWS = [
    (mla("none", "bf16", "bf16"), mla("none", "f32", "f32"), "lossless", "roles[0].dtype"),
    (mla("none", "bf16", "bf16"), mla("none", "bf16", "f32"), "lossless", "roles[1].dtype"),
    (mla("fp8_ds_mla_656", "e4m3", "bf16"), mla("none", "f32", "bf16"), "lossless", "codec.id"),
    (mla("fp8_ds_mla_656", "e4m3", "bf16"), mla("none", "bf16", "bf16"), "lossy", "codec.id"),
    (mla("fp8_ds_mla_656", "e4m3", "bf16"), mla("none", "f32", "f16"), "lossy", "codec.id"),
    (mla("none", "bf16", "bf16"), mla("fp8_ds_mla_656", "e4m3", "bf16"), "lossy", "codec.id"),
    (
        mla("fp8_per_tensor", "e4m3", "e4m3", 0.5),
        mla("none", "bf16", "bf16"),
        "lossless",
        "codec.id",
    ),
    (mla("fp8_per_tensor", "e4m3", "e4m3", 0.75), mla("none", "bf16", "bf16"), "lossy", "codec.id"),
]


@pytest.mark.parametrize(("src", "dst", "verdict", "path"), MLA_ROWS)
def test_latents(src: Descriptor, dst: Descriptor, verdict: str, path: str) -> None:
    (finding,) = compare(src, dst).findings
    assert (finding.verdict, finding.path) == (verdict, f"groups[0].{path}")


def test_656_moves_as_it_is_whatever_the_layout() -> None:
    src = mla("fp8_ds_mla_656", "e4m3", "bf16")
    group = src.groups[0]
    assert sum(r.bits * r.shape.get("D", r.shape.get("G", 0)) for r in group.roles) == 656 * 8
    assert compare(src, src).verdict == "identical"
    padded = tuple(
        replace(role, terms=(("N", 1, 4, 672 * 8), *role.terms[1:])) for role in group.roles
    )
    dst = replace(src, groups=(replace(group, roles=padded),))
    (finding,) = compare(src, dst).findings
    assert finding.verdict == "lossless"
    assert finding.reason.endswith("on both sides, with other pads: no bit changes")
