"""Pairs of opaque groups that differ in two ways at once: which of them is named."""

from typing import Any

from abi_vectors import formats
from abi_vectors.decode_cases import f32
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache
from abi_vectors.refusals import Refusal

DIMS = Dims(layers=1, blocks=2, tokens=4)
_SECOND: dict[str, Any] = {"rank": 1, "size": 2}


def opaque_order() -> list[Refusal]:
    """Each of the fields that section 8 of the ABI lists, before the next."""
    first, second = {"heads": [0, 2, 4]}, {"heads": [1, 3, 4]}
    longer = DIMS._replace(tokens=8)
    turns = {"tokens": {"size": 2, "interleave": 2}}
    e5m2 = DIMS._replace(dtype="e5m2")
    pairs: list[tuple[str, str, Cache, Cache, str]] = [
        (
            "window-before-blocks",
            "layers that look back differently, and blocks",
            _packed("LBNHC", window=8),
            _packed("LBNHC", longer, window=16),
            "window",
        ),
        (
            "blocks-before-heads",
            "blocks of 4 and of 8 tokens, and heads",
            _packed("LBNHC", owner=first),
            _packed("LBHNC", longer, owner=second),
            "tokens_per_block",
        ),
        (
            "blocks-before-terms",
            "blocks of 4 and of 8 tokens, and a layout",
            _packed("LBNHC"),
            _packed("LBHNC", longer),
            "tokens_per_block",
        ),
        (
            "heads",
            "pages that look alike, of heads 0 and 1, and of 1 and 2",
            _packed("LBNHC", owner=first),
            _packed("LBNHC", owner=second),
            "owner.heads",
        ),
        (
            "heads-before-tokens",
            "other heads, and all tokens in place of every second",
            _packed("LBNHC", owner=first | {"tokens": _SECOND}),
            _packed("LBHNC", owner=second),
            "owner.heads",
        ),
        (
            "tokens",
            "pages that look alike, of every second token, and of every other two",
            _packed("LBNHC", owner={"heads": [0, 2, 2], "tokens": _SECOND}),
            _packed("LBNHC", owner={"heads": [0, 2, 2]} | turns),
            "owner.tokens",
        ),
        (
            "tokens-before-scales",
            "all tokens in place of every second, and scales of a layer",
            _scaled(0.5, owner={"heads": [0, 2, 2], "tokens": _SECOND}),
            _scaled(0.25),
            "owner.tokens",
        ),
        (
            "scales-before-dtypes",
            "other scales of the layer, and other elements",
            _scaled(0.5),
            _scaled(0.25, "LBHNC", e5m2),
            "codec.params.scales.k",
        ),
        (
            "dtypes-before-terms",
            "other values, and keys in another layout",
            _packed("LBNHC"),
            _packed("LBHNC", DIMS._replace(dtype="f16")),
            "roles[0].dtype",
        ),
    ]
    return [
        Refusal(f"refused-opaque-{name}", words, src, dst, f"groups[0].{path}")
        for name, words, src, dst, path in pairs
    ]


def _packed(layout: str, dims: Dims = DIMS, **document: Any) -> Cache:
    return formats.vllm(layout, dims, opaque="example/1.0 backend=of-its-own", **document)


def _scaled(scale: float, layout: str = "LBNHC", dims: Dims = DIMS, **document: Any) -> Cache:
    params = {"scales.k": [f32(scale)], "scales.v": [f32(scale)]}
    codec = {"id": "fp8_per_tensor", "params": params}
    return _packed(
        layout, dims._replace(dtype="e4m3" if dims is DIMS else dims.dtype), codec=codec, **document
    )
