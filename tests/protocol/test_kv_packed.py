"""Pages of packed caches that vLLM's kernels wrote, read by nothing but the builder's descriptor.

Recorded by `tools/record_kv_packed.py`. What a format makes of the values that went in is computed
here again, from the format's own rules and with numpy alone.
"""

import hashlib
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.kv_pages import (
    UNTOUCHED,
    cases,
    decoded,
    described,
    elements,
    pool_of,
    untouched_of,
    written,
)
from transload_abi.builders import Interior
from transload_abi.errors import AbiError

CASES = cases("pages-packed.json")
Floats = NDArray[np.float32]

each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES])


def named(prefix: str) -> pytest.MarkDecorator:
    found = [pytest.param(c, id=c["name"]) for c in CASES if c["name"].startswith(prefix)]
    return pytest.mark.parametrize("case", found)


def hadamard(size: int) -> NDArray[np.float64]:
    """Sylvester's matrix of ones."""
    found = np.ones((1, 1))
    while len(found) < size:
        found = np.block([[found, found], [found, -found]])
    return found


def to_bf16(values: NDArray[np.float64]) -> Floats:
    """To nearest, ties to even."""
    bits = values.astype(np.float32).view(np.uint32).astype(np.uint64)
    near = (bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000
    return near.astype(np.uint32).view(np.float32)


def test_every_kernel_was_recorded() -> None:
    assert [case["name"] for case in CASES] == [
        "int4-LBHNC",
        "int4-LBNHC",
        "ultraquant",
        "turboquant-k8v4-packed",
        "turboquant-4bit_nc-packed",
        "turboquant-k3v4_nc-packed",
        "turboquant-3bit_nc-packed",
        "turboquant-k8v4-turboquant_regions",
        "turboquant-3bit_nc-turboquant_regions",
        "v4-584",
        "v3-656",
        "v3-132",
        "compressor",
        "v41-528",
        "v4-bf16",
        "aiter-auto",
        "aiter-fp8",
    ]


@each_case
def test_the_kernel_touched_no_byte_that_is_not_described(case: dict[str, Any]) -> None:
    d, pool = described(case), pool_of(case)
    whole = ("k_scale", "v_scale") if case["name"].startswith("int4") else ()
    is_free = untouched_of(case, d, whole)
    changed = np.count_nonzero(pool[is_free] != UNTOUCHED)
    # V4's kernel makes the pad behind the seven scales of each token zero.
    assert changed == (len(case["slots"]) if case["name"] == "v4-584" else 0)
    assert np.count_nonzero(pool[~is_free] != UNTOUCHED) > 0.9 * np.count_nonzero(~is_free)


EXACT = [
    ("ultraquant", "v"),
    ("v4-584", "latent"),
    ("v4-584", "rope"),
    ("v3-656", "latent"),
    ("v3-656", "rope"),
    ("v3-132", "index_k"),
    ("compressor", "state_kv"),
    ("compressor", "state_score"),
    ("v41-528", "latent"),
    ("v4-bf16", "latent"),
    ("v4-bf16", "rope"),
    ("aiter-auto", "k"),
    ("aiter-auto", "v"),
    ("aiter-fp8", "k"),
    ("aiter-fp8", "v"),
]


@pytest.mark.parametrize(("name", "role"), EXACT)
def test_what_a_format_keeps_exactly_is_what_is_decoded(name: str, role: str) -> None:
    case = next(case for case in CASES if case["name"] == name)
    due = written(case, role)
    np.testing.assert_array_equal(decoded(case, described(case), role), due)
    assert np.unique(due).size > 12


@named("ultraquant")
def test_ultraquants_keys_are_decoded_in_their_rotated_space(case: dict[str, Any]) -> None:
    keys = written(case, "k").astype(np.float64)
    size = keys.shape[-1]
    rotated = keys @ hadamard(size) / np.sqrt(size)
    levels = np.round(2 * rotated) / 2
    assert np.abs(levels - rotated).max() < 0.01
    np.testing.assert_array_equal(decoded(case, described(case), "k"), levels.astype(np.float32))


@named("int4")
def test_the_name_of_a_rotation_is_the_digest_of_its_signs(case: dict[str, Any]) -> None:
    signs = np.array(case["signs"], np.int8)
    assert set(case["signs"]) == {1, -1}
    due = "sha256:" + hashlib.sha256(signs.tobytes()).hexdigest()
    params = described(case).groups[0].codec.params
    assert params == {"rotation.k": due, "rotation.v": due}


@named("int4")
@pytest.mark.parametrize("role", ["k", "v"])
def test_int4_is_what_its_rules_make_of_the_rotated_values(case: dict[str, Any], role: str) -> None:
    values = written(case, role).astype(np.float64)
    turned = to_bf16((values * np.array(case["signs"])) @ hadamard(values.shape[-1]))
    least, largest = turned.min(-1, keepdims=True), turned.max(-1, keepdims=True)
    scale = np.maximum((largest - least) / np.float32(15), np.float32(1e-6))
    zero = np.clip(np.trunc(-least / scale + np.float32(0.5)), 0, 15)
    inverse = np.float32(1) / scale
    code = np.clip(np.trunc(turned * inverse + zero + np.float32(0.5)), 0, 15)
    kept = (scale.view(np.uint32) & ~np.uint32(15)).view(np.float32)

    d = described(case)
    np.testing.assert_array_equal(elements(case, d, role), code)
    np.testing.assert_array_equal(elements(case, d, f"{role}_scale") & 15, zero[..., 0])
    np.testing.assert_array_equal(decoded(case, d, role), (code - zero) * kept)


def packed_codes(codes: NDArray[Any], bits: int) -> NDArray[np.uint8]:
    """Codes one after the other, the least significant bit first."""
    each = (codes[..., None] >> np.arange(bits)) & 1
    flat = each.reshape(*codes.shape[:-1], -1).astype(np.uint8)
    return np.packbits(flat, axis=-1, bitorder="little")


def bits_of(case: dict[str, Any]) -> tuple[int, int]:
    params = described(case).groups[0].codec.params
    key, value = params["key_bits"], params["value_bits"]
    assert isinstance(key, int)
    assert isinstance(value, int)
    return key, value


@named("turboquant")
def test_turboquants_values_are_codes_between_the_least_and_the_largest(
    case: dict[str, Any],
) -> None:
    _, bits = bits_of(case)
    values, top = written(case, "v"), (1 << bits) - 1
    least = values.min(-1, keepdims=True)
    scale = (values.max(-1, keepdims=True) - least) / np.float32(top)
    code = np.clip(np.trunc((values - least) / scale + np.float32(0.5)), 0, top).astype(int)

    d = described(case)
    np.testing.assert_array_equal(elements(case, d, "v_code"), packed_codes(code, bits))
    for role, due in (("v_scale", scale), ("v_zero", least)):
        found = elements(case, d, role).view(np.float16)
        np.testing.assert_array_equal(found, due[..., 0].astype(np.float16))


@named("turboquant")
def test_turboquants_keys_are_a_norm_and_centroids(case: dict[str, Any]) -> None:
    bits, _ = bits_of(case)
    d, keys = described(case), written(case, "k")
    if bits == 8:
        found = elements(case, d, "k_code")
        assert d.groups[0].role("k_norm") is None
        np.testing.assert_array_equal(decode_e4m3(found), keys)
        return
    norm = np.sqrt((keys.astype(np.float64) ** 2).sum(-1, keepdims=True))
    turned = keys / norm @ hadamard(keys.shape[-1]) / np.sqrt(keys.shape[-1])
    centroids = np.array(case["centroids"])
    code = np.searchsorted((centroids[:-1] + centroids[1:]) / 2, turned, side="right")
    np.testing.assert_array_equal(elements(case, d, "k_code"), packed_codes(code, bits))

    if case["interior"]["name"] == "turboquant_regions":  # there, of what the centroids come to
        norm /= np.sqrt((centroids[code] ** 2).sum(-1, keepdims=True))
    found = elements(case, d, "k_norm").view(np.float16)
    np.testing.assert_allclose(found, norm[..., 0], rtol=2**-10)


def decode_e4m3(bits: NDArray[np.uint8]) -> Floats:
    """Normal ones and zeros alone."""
    exponent, mantissa = (bits >> 3).astype(int) & 15, bits & 7
    sign = np.where(bits & 0x80, -1.0, 1.0)
    assert np.all((exponent > 0) | (mantissa == 0))
    size = np.where(exponent, 1 + mantissa / 8, 0) * 2.0 ** (exponent - 7)
    return np.asarray(sign * size, np.float32)


@pytest.mark.parametrize(
    ("name", "role", "wrong"),
    [
        ("v3-132", "index_k", {"float8": "e4m3fnuz"}),
        ("v4-584", "latent", {"float8": "e5m2"}),
        ("turboquant-3bit_nc-packed", "v_zero", {"name": "turboquant_regions"}),
        ("turboquant-k8v4-turboquant_regions", "v_code", {"name": "packed"}),
    ],
)
def test_another_interior_reads_something_else(name: str, role: str, wrong: dict[str, Any]) -> None:
    case = next(case for case in CASES if case["name"] == name)
    reads = elements if name.startswith("turboquant") else decoded
    right, other = described(case), described(case, **wrong)
    assert not np.array_equal(reads(case, other, role), reads(case, right, role))


def test_a_rotation_has_to_be_told() -> None:
    case = next(case for case in CASES if case["name"] == "int4-LBHNC")
    with pytest.raises(AbiError, match=r"interior\.rotation: .* nobody says which"):
        described(case, **{"rotation": Interior().rotation})
