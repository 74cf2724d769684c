"""The transfers of `convert/` at the edges of what is lossless: bits, ranges, ratios and layers."""

import math
from typing import Any, NamedTuple

from abi_vectors import formats, quantized
from abi_vectors.decode_cases import f32
from abi_vectors.pages import Cache
from abi_vectors.regions import Field, Region, regions
from abi_vectors.transfers import SMALL, ConvertCase, small

KV = ("k", "v")


class _Pair(NamedTuple):
    """A conversion of all elements; a scale is one of parameters, 0: there is none."""

    name: str
    description: str
    dtype: str
    scale: float
    other: str
    other_scale: float
    verdict: str


def kept_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_plain(), *_ranges(), *_ratios(), *_scaled(), *_rotary_parts(), *_layers()]


def per_layer(dtype: str, *scales: float, **document: Any) -> Cache:
    """Keys and values under the same scale in each layer."""
    texts = [f32(scale) for scale in scales]
    params = {"scales.k": texts, "scales.v": texts}
    dims = SMALL._replace(layers=len(scales), dtype=dtype)
    codec = {"id": "fp8_per_tensor", "params": params}
    return formats.vllm("LBNHC", dims, codec=codec, **document)


def _plain_or_scaled(dtype: str, scale: float) -> Cache:
    if scale:
        return per_layer(dtype, scale)
    return formats.vllm("LBNHC", SMALL._replace(dtype=dtype))


def _cases(pairs: list[_Pair]) -> list[ConvertCase]:
    return [
        small(
            each.name,
            each.description,
            _plain_or_scaled(each.dtype, each.scale),
            _plain_or_scaled(each.other, each.other_scale),
            each.verdict,
            change=KV,
        )
        for each in pairs
    ]


def _plain() -> list[ConvertCase]:
    return _cases(
        [
            _Pair("f16-to-bf16", "eleven significant bits to eight", "f16", 0, "bf16", 0, "lossy"),
            _Pair("bf16-to-f16", "the range of bf16 is wider", "bf16", 0, "f16", 0, "lossy"),
            _Pair("f16-to-f32", "bits and range of f16 are less", "f16", 0, "f32", 0, "lossless"),
        ]
    )


def _ranges() -> list[ConvertCase]:
    """The least above zero and the largest, at their limits and beyond."""
    edges = [
        ("f16", -15, "the least, 2^-24, is the least of f16", "lossless"),
        ("f16", -16, "the least, 2^-25, is below the least of f16", "lossy"),
        ("f16", 7, "the largest, 57344, is below 65504", "lossless"),
        ("bf16", -124, "the least, 2^-133, is the least of bf16", "lossless"),
        ("bf16", -125, "the least, 2^-134, is below the least of bf16", "lossy"),
        ("bf16", 119, "the largest, 1.75 x 2^127, is below that of bf16", "lossless"),
        ("bf16", 120, "the largest, 1.75 x 2^128, is above that of bf16", "lossy"),
    ]
    same = "e5m2-to-e5m2fnuz"
    return _cases(
        [
            *(
                _Pair(
                    f"e4m3-of-2-to-{power}-to-{dtype}".replace("to--", "to-minus-"),
                    words,
                    "e4m3",
                    2.0**power,
                    dtype,
                    0,
                    verdict,
                )
                for dtype, power, words, verdict in edges
            ),
            _Pair(
                same, "the largest is the same on both sides", "e5m2", 1, "e5m2fnuz", 1, "lossless"
            ),
            _Pair(f"{same}-halved", "so is the least", "e5m2", 1, "e5m2fnuz", 2, "lossless"),
            _Pair(f"{same}-quartered", "the least is less", "e5m2", 1, "e5m2fnuz", 4, "lossy"),
            _Pair(f"{same}-doubled", "the largest is more", "e5m2", 2, "e5m2fnuz", 1, "lossy"),
            _Pair("e4m3fnuz-to-e4m3", "the least is less", "e4m3fnuz", 1, "e4m3", 1, "lossy"),
            _Pair("e5m2-to-e4m3", "the range is wider", "e5m2", 1, "e4m3", 1, "lossy"),
        ]
    )


def _ratios() -> list[ConvertCase]:
    """The same bytes are worth half, so all are kept; scales that are no powers of two round."""
    odd: list[tuple[str, float, str, str]] = [
        ("odd", 0.3, "scales that are no powers of two, of which one is half of the other", ""),
        ("odd-near-2-to-100", 1.5 * 2.0**98, "both are below 2^100", ""),
        ("odd-beyond-2-to-100", 1.5 * 2.0**99, "the destination's is above 2^100", "lossy"),
        ("odd-near-2-to-minus-100", 1.5 * 2.0**-100, "both are above 2^-100", ""),
        ("odd-beyond-2-to-minus-100", 1.5 * 2.0**-101, "the source's is below 2^-100", "lossy"),
        ("even-beyond-2-to-minus-100", 2.0**-120, "powers of two of any size", ""),
        ("even-beyond-2-to-100", 2.0**110, "powers of two of any size", ""),
    ]
    return _cases(
        [
            *(
                _Pair(
                    f"e4m3-to-e4m3fnuz-{name}",
                    words,
                    "e4m3",
                    scale,
                    "e4m3fnuz",
                    2 * scale,
                    verdict or "lossless",
                )
                for name, scale, words, verdict in odd
            ),
            _Pair(
                "e5m2-to-e5m2fnuz-of-one-odd-scale",
                "a ratio of one",
                "e5m2",
                0.3,
                "e5m2fnuz",
                0.3,
                "lossless",
            ),
            _Pair(
                "e4m3-to-e4m3fnuz-of-thrice-the-scale",
                "a ratio that is no power of two, though the largest is within",
                "e4m3",
                1,
                "e4m3fnuz",
                3,
                "lossy",
            ),
        ]
    )


def _cells(dtype: str, scale: str, factor: float = 0) -> Cache:
    """Keys and values with scales of eight elements in the page."""
    codec: dict[str, Any] = {"id": "block_scaled"}
    if factor:
        codec["params"] = {"scales.k": [f32(factor)], "scales.v": [f32(factor)]}
    dims = SMALL._replace(dtype=dtype)
    return quantized.group_scaled_cells("LBNHC", dims, 8, scale, codec=codec)


def _named(factor: float) -> str:
    fraction, power = math.frexp(factor)
    if fraction != 0.5:
        return "odd"
    return f"2-to-{power - 1}".replace("to--", "to-minus-")


def _scaled() -> list[ConvertCase]:
    """From scales in the page: bits of both count, unless scales are powers of two."""
    pairs: list[tuple[str, str, str, float, str, float, str]] = [
        ("eight bits at most", "e4m3", "e4m3", 0, "bf16", 0, "lossless"),
        ("the largest, 200704, is beyond f16", "e4m3", "e4m3", 0, "f16", 0, "lossy"),
        ("seven bits at most", "e5m2", "e4m3", 0, "bf16", 0, "lossless"),
        ("six bits, and at most 2688", "e2m1", "e4m3", 0, "f16", 0, "lossless"),
        ("six bits to three, within its range", "e2m1", "e4m3", 0, "e5m2", 1, "lossy"),
        ("at most 25088", "e4m3", "e4m3", 2.0**-3, "f16", 0, "lossless"),
        ("at least 2^-24, the least of f16", "e4m3", "e4m3", 2.0**-6, "f16", 0, "lossless"),
        ("at least 2^-25", "e4m3", "e4m3", 2.0**-7, "f16", 0, "lossy"),
        ("powers of two beyond f16", "e2m1", "ue8m0", 0, "f16", 0, "lossy"),
        ("powers of two beyond e5m2", "e2m1", "ue8m0", 0, "e5m2", 1, "lossy"),
        ("powers of two, all of them", "e5m2", "ue8m0", 2.0**60, "bf16", 0, "lossless"),
        ("an odd scale beside powers of two", "e2m1", "ue8m0", 0.3, "bf16", 0, "lossy"),
        ("scales of 24 bits", "e2m1", "f32", 0, "bf16", 0, "lossy"),
        ("scales of 24 bits", "e2m1", "f32", 0, "f32", 0, "lossless"),
    ]
    found = []
    for words, dtype, scale, factor, other, other_factor, verdict in pairs:
        name = f"{dtype}-under-{scale}-to-{other}"
        if factor:
            name = name.replace("-to-", f"-and-{_named(factor)}-to-")
        src, dst = _cells(dtype, scale, factor), _plain_or_scaled(other, other_factor)
        found.append(small(name, words, src, dst, verdict, change=KV))
    return found


def _rotary_parts() -> list[ConvertCase]:
    """Latents move as bits, and the rotary part beside them is converted."""
    pairs = [
        ("bf16", "f32", "every bf16 is a binary32", "lossless"),
        ("f16", "bf16", "eleven significant bits to eight", "lossy"),
        ("bf16", "e5m2", "eight significant bits to three", "lossy"),
        ("e4m3", "f16", "bits and range are less", "lossless"),
        ("e5m2", "f16", "bits and range are less", "lossless"),
        ("e5m2", "e5m2fnuz", "all of it, and less", "lossless"),
        ("e5m2", "e4m3", "the range is wider", "lossy"),
        ("e4m3", "e5m2", "four significant bits to three", "lossy"),
        ("e4m3", "e4m3fnuz", "the largest is more", "lossy"),
    ]
    return [
        small(
            f"rope-{dtype}-to-{other}",
            f"the rotary part alone: {words}",
            _latents(dtype),
            _latents(other),
            verdict,
            change=("rope",),
        )
        for dtype, other, words, verdict in pairs
    ]


def _latents(rope: str) -> Cache:
    rows: Region = [Field("latent", "e2m1", 16), Field("latent_scale", "e4m3", 2, "NG")]
    pad = [Field("", size=2)]
    parts: list[Region] = [[*rows, *pad], [Field("rope", rope, 4)]]
    return regions("LB", SMALL, parts, codec={"id": "block_scaled"})


def _layers() -> list[ConvertCase]:
    """Scales count for the layers that both sides have."""
    bf16 = SMALL._replace(layers=2)
    return [
        small(
            "odd-scale-of-the-second-layer",
            "a power of two in the first layer, and none in the second",
            per_layer("e4m3", 0.25, 0.3),
            formats.vllm("LBNHC", bf16),
            "lossy",
            change=KV,
        ),
        small(
            "odd-scale-of-a-layer-that-stays",
            "a power of two in the layer that both have, and none in another of the source",
            per_layer("e4m3", 0.25, 0.3),
            formats.vllm("LBNHC", SMALL),
            "lossless",
            change=KV,
        ),
        small(
            "scales-of-the-layer-that-both-have",
            "the second of two layers, with its scale, as the only one",
            per_layer("e4m3", 0.3, 0.7),
            per_layer("e4m3", 0.7, layers=[1]),
            "identical",
        ),
        small(
            "scales-of-another-layer",
            "the second of two layers with the scale of the first",
            per_layer("e4m3", 0.3, 0.7),
            per_layer("e4m3", 0.3, layers=[1]),
            "lossy",
            change=KV,
        ),
    ]
