"""The pairs of `convert/` of few bits, codes and states between which nothing may move."""

from typing import Any

from abi_vectors import formats, quantized, state_formats
from abi_vectors.formats import Dims
from abi_vectors.opaque_order import opaque_order
from abi_vectors.pages import Cache
from abi_vectors.refusals import Refusal
from abi_vectors.regions import Field, Region, regions

DIMS = Dims(blocks=3)
OTHER = "sha256:" + "b2" * 32
WRITER = "example/1.0 backend=of-its-own"
SHORT = Dims(layers=1, heads=1, blocks=2, tokens=2)
_ROWS: Region = [
    Field("latent", "e4m3", 256),
    Field("latent_scale", "f32", 2, "NG"),
    Field("rope", "bf16", 8),
]


def format_refusals() -> list[Refusal]:
    """All of them."""
    return [*_rotations(), *_codes(), *_contents(), *_undescribed(), *opaque_order()]


def _refusals(pairs: list[tuple[str, str, Cache, Cache, str]]) -> list[Refusal]:
    return [
        Refusal(f"refused-{name}", words, src, dst, f"groups[0].{path}")
        for name, words, src, dst, path in pairs
    ]


def _int4(**params: str) -> Cache:
    codec = {"id": "int4_zero_point"} | ({"params": params} if params else {})
    return quantized.int4_cells("LBNHC", DIMS, codec=codec)


def _rotations() -> list[Refusal]:
    one, two = {"rotation.k": quantized.TABLE}, {"rotation.k": OTHER}
    latent = {"rotation.latent": quantized.TABLE}
    packed = formats.vllm("LBNHC", DIMS._replace(size=32))
    return _refusals(
        [
            (
                "rotation-differs",
                "keys rotated by other tables",
                _int4(**one),
                _int4(**two),
                "codec.params.rotation.k",
            ),
            (
                "rotation-of-values-differs",
                "the same rotation of keys, and another of values",
                _int4(**one, **{"rotation.v": OTHER}),
                _int4(**one, **{"rotation.v": quantized.TABLE}),
                "codec.params.rotation.v",
            ),
            (
                "rotation-lacks",
                "rotated keys, and keys that are not",
                _int4(**one),
                _int4(),
                "codec.params.rotation.k",
            ),
            (
                "rotation-of-rows-656",
                "the rows of 656 bytes, and the same rotated, which another codec says",
                regions("LB", SHORT, [_ROWS], codec={"id": "fp8_ds_mla_656"}),
                regions("LB", SHORT, [_ROWS], codec={"id": "block_scaled", "params": latent}),
                "codec.params.rotation.latent",
            ),
            (
                "rotated-to-bf16",
                "the values of rotated elements are no keys of the model",
                quantized.ultraquant("LBNHC", DIMS._replace(size=32)),
                packed,
                "codec.params.rotation.k",
            ),
        ]
    )


def _codes() -> list[Refusal]:
    params = {"tables": quantized.TABLE, "key_bits": 4, "value_bits": 4}

    def codes(**given: Any) -> Cache:
        codec = {"id": "turboquant", "params": params | given}
        return quantized.turboquant("LBHNC", DIMS, 4, 4, codec=codec)

    return _refusals(
        [
            (
                "tables-differ",
                "codes of other tables",
                codes(),
                codes(tables=OTHER),
                "codec.params.tables",
            ),
            (
                "bits-of-keys-differ",
                "the same bytes hold codes of 4 and of 3 bits",
                codes(),
                codes(key_bits=3),
                "codec.params.key_bits",
            ),
            (
                "bits-of-values-differ",
                "likewise for values",
                codes(),
                codes(value_bits=2),
                "codec.params.value_bits",
            ),
            (
                "codes-of-other-sizes",
                "codes of 4 and of 8 bits",
                codes(),
                quantized.turboquant("LBHNC", DIMS, 8, 4),
                "roles",
            ),
            (
                "codes-to-values",
                "codes are no keys and values to others than their owner",
                codes(),
                formats.vllm("LBNHC", DIMS),
                "roles",
            ),
            (
                "values-to-codes",
                "the reverse",
                formats.vllm("LBNHC", DIMS),
                codes(),
                "roles",
            ),
        ]
    )


def _contents() -> list[Refusal]:
    one = Dims(heads=1, blocks=3)
    key = Field("index_k", "bf16", 8)
    index = regions("LB", one, [[key]], kind="full")
    position = Field("position", "i64", 3)
    ring: dict[str, Any] = {"kind": "ring", "window": 8}
    compressed: dict[str, Any] = {"kind": "full", "tokens_per_block": 32}
    states = Dims(blocks=3, tokens=16)
    return _refusals(
        [
            (
                "indexer-to-heads",
                "keys by which tokens are chosen, and keys and values",
                index,
                formats.vllm("LBNHC", one),
                "roles",
            ),
            (
                "heads-to-indexer",
                "the reverse",
                formats.vllm("LBNHC", one),
                index,
                "roles",
            ),
            (
                "compressed-keys",
                "a key for each four tokens, and one for each",
                regions("LB", one, [[key]], **compressed, tokens_per_state=[4, 1]),
                index,
                "tokens_per_state",
            ),
            (
                "ring-to-pages",
                "the rows of an open group, and the keys of all tokens",
                regions("LB", one, [[key]], **ring),
                index,
                "kind",
            ),
            (
                "positions-lack",
                "keys with positions, and keys without",
                regions("LB", one, [[key, position]], **ring),
                regions("LB", one, [[key]], **ring),
                "roles",
            ),
            (
                "latent-of-other-size",
                "latents of 8 and of 16 elements without a rotary part",
                regions("LB", one, [[Field("latent", "bf16", 8)]]),
                regions("LB", one, [[Field("latent", "bf16", 16)]]),
                "roles[0].shape.D",
            ),
            (
                "rope-lacks",
                "latents with a rotary part, and latents without",
                formats.latent("LB", one, 8),
                regions("LB", one, [[Field("latent", "bf16", 8)]]),
                "roles",
            ),
            (
                "states-of-other-heads",
                "states of layers of 4 and of 8 heads",
                state_formats.delta_net("LB", states, (4, 4)),
                state_formats.delta_net("LB", states, (4, 4), heads=[0, 4, 8]),
                "owner.heads",
            ),
            (
                "flattened-states",
                "a state by heads, and one of which nobody knows them",
                state_formats.delta_net("LB", states, (3, 3)),
                formats.recurrent(states._replace(size=96), conv=180, pad=0),
                "owner.heads",
            ),
        ]
    )


def _undescribed() -> list[Refusal]:
    pages = state_formats.opaque_pages

    def packed(layout: str, **document: Any) -> Cache:
        return formats.vllm(layout, DIMS, **document)

    return _refusals(
        [
            (
                "opaque-of-another-writer",
                "pages that others write",
                pages(DIMS, 264),
                pages(DIMS, 264, opaque="example/2.0 backend=of-its-own"),
                "opaque",
            ),
            (
                "opaque-of-another-size",
                "pages of other lengths, whoever writes them",
                pages(DIMS, 264),
                pages(DIMS, 272),
                "roles[0].shape.D",
            ),
            (
                "opaque-of-other-blocks",
                "pages of one length that hold 8 and 4 tokens",
                pages(DIMS, 264),
                pages(DIMS._replace(tokens=4), 264),
                "tokens_per_block",
            ),
            (
                "opaque-to-shown",
                "the same roles: on one side nobody has shown that they are there",
                packed("LBNHC", opaque=WRITER),
                packed("LBNHC"),
                "opaque",
            ),
            (
                "shown-to-opaque",
                "the reverse",
                packed("LBNHC"),
                packed("LBNHC", opaque=WRITER),
                "opaque",
            ),
            (
                "opaque-in-another-layout",
                "what nobody has shown cannot be taken out of one layout into another",
                packed("LBNHC", opaque=WRITER),
                packed("LBHNC", opaque=WRITER),
                "roles[0].terms",
            ),
            (
                "page-to-roles",
                "a page as a whole, and one that is described, of one writer",
                pages(DIMS, 512, opaque=WRITER),
                packed("LBNHC", opaque=WRITER),
                "roles",
            ),
        ]
    )
