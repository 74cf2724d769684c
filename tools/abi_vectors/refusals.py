"""The pairs of `convert/` between which nothing may move, each with the field that forbids it."""

from __future__ import annotations

from typing import Any, NamedTuple

from abi_vectors import formats
from abi_vectors.formats import Dims
from abi_vectors.pages import Cache, model

DIMS = Dims(blocks=3)


class Refusal(NamedTuple):
    """A pair; `path` is the first field of the destination that forbids it."""

    name: str
    description: str
    src: Cache
    dst: Cache
    path: str


def refusals() -> list[Refusal]:
    """All of them."""
    return [*_models(), *_groups()]


def _cache(given: dict[str, Any] | None = None, **document: Any) -> Cache:
    cache = formats.vllm("LBNHC", DIMS, **document)
    cache.model = model(**(given or {}))
    return cache


def _turns(rank: int) -> dict[str, Any]:
    tokens = {"size": 2, "interleave": 4} | ({"rank": rank} if rank else {})
    return {"heads": [0, 2, 2], "tokens": tokens}


def _unnamed(**given: Any) -> Cache:
    """A model of which nobody has the weights' digest."""
    cache = _cache(given)
    del cache.model["weights"]
    return cache


def _models() -> list[Refusal]:
    params = {"rope_theta": 10000}
    pairs: list[tuple[str, str, Cache, Cache, str]] = [
        (
            "weights",
            "other weights under the same name",
            _cache(),
            _cache({"weights": "sha256:" + "e5" * 32}),
            "model.weights",
        ),
        (
            "revision",
            "no digests, and other revisions",
            _unnamed(revision="main"),
            _unnamed(revision="v2"),
            "model.revision",
        ),
        (
            "model-unknown",
            "one name, a digest on one side alone and no revision: it may be another model",
            _cache(),
            _unnamed(),
            "model.weights",
        ),
        (
            "adapter",
            "an adapter on one side",
            _cache(),
            _cache({"adapter": "lora-1"}),
            "model.adapter",
        ),
        (
            "rope-state",
            "keys are rotated on one side and not on the other",
            _cache(),
            _cache({"rope": {"state": "not_applied", "params": params}}),
            "model.rope.state",
        ),
        (
            "rope-unknown",
            "both sides do not know, which is not the same",
            _cache({"rope": {"state": "unknown"}}),
            _cache({"rope": {"state": "unknown"}}),
            "model.rope.state",
        ),
        (
            "rope-theta",
            "rotated by other angles",
            _cache(),
            _cache({"rope": {"state": "applied", "params": {"rope_theta": 500000}}}),
            "model.rope.params.rope_theta",
        ),
        (
            "rope-parameter-lacking",
            "a parameter that the destination does not name",
            _cache({"rope": {"state": "applied", "params": params | {"factor": 8}}}),
            _cache(),
            "model.rope.params.factor",
        ),
        (
            "num-layers",
            "models of 8 and of 9 layers",
            _cache(),
            _cache({"num_layers": 9}),
            "model.num_layers",
        ),
        (
            "kv-share",
            "other layers read another's keys and values",
            _cache(),
            _cache({"kv_share": [[3, 1]]}),
            "model.kv_share",
        ),
    ]
    return [
        Refusal(f"refused-{name}", words, src, dst, path) for name, words, src, dst, path in pairs
    ]


def _groups() -> list[Refusal]:
    slide: dict[str, Any] = {"kind": "sliding_window"}
    short = formats.latent("LB", Dims(heads=1, blocks=3), 8, tokens_per_state=[4, 1])
    short.groups["attention"].document["tokens_per_block"] = 32
    pairs: list[tuple[str, str, Cache, Cache, str]] = [
        (
            "window-to-full",
            "the source has dropped the tokens before its window",
            _cache(**slide, window=16),
            _cache(window=16),
            "groups[0].kind",
        ),
        (
            "other-window",
            "windows of other lengths",
            _cache(**slide, window=16),
            _cache(**slide, window=24),
            "groups[0].window",
        ),
        (
            "latent-to-heads",
            "keys and values cannot be had from latents without weights",
            formats.latent("LB", Dims(heads=1, blocks=3), 8),
            formats.vllm("LBNHC", DIMS._replace(heads=1)),
            "groups[0].kind",
        ),
        (
            "compressed-states",
            "a state for each four tokens and one for each token",
            short,
            formats.latent("LB", Dims(heads=1, blocks=3), 8),
            "groups[0].tokens_per_state",
        ),
        (
            "heads-of-the-model",
            "2 heads of 4 and 2 of 8",
            _cache(owner={"heads": [0, 2, 4]}),
            _cache(owner={"heads": [0, 2, 8]}),
            "groups[0].owner.heads",
        ),
        (
            "head-size",
            "heads of 8 and of 16 elements",
            _cache(),
            formats.vllm("LBNHC", DIMS._replace(size=16)),
            "groups[0].roles[0].shape.D",
        ),
        (
            "no-common-layer",
            "layers 0 and 1, and layers 2 and 3",
            _cache(),
            _cache(layers=[2, 3]),
            "groups[0].layers",
        ),
        (
            "ring-of-other-blocks",
            "rings of one window in blocks of 8 and of 4 tokens",
            _cache(kind="ring", window=4),
            formats.vllm("LBNHC", DIMS._replace(tokens=4), kind="ring", window=4),
            "groups[0].tokens_per_block",
        ),
        (
            "full-to-cross",
            "the decoder's tokens and the encoder's positions",
            _cache(),
            _cache(kind="cross"),
            "groups[0].kind",
        ),
        (
            "no-common-token",
            "the first and the second of two ranks that take turns of 4 tokens",
            _cache(owner=_turns(0)),
            _cache(owner=_turns(1)),
            "groups[0].owner.tokens",
        ),
        (
            "no-common-head",
            "heads 0 and 1, and heads 2 and 3",
            _cache(owner={"heads": [0, 2, 4]}),
            _cache(owner={"heads": [2, 4, 4]}),
            "groups[0].owner.heads",
        ),
    ]
    return [
        Refusal(f"refused-{name}", words, src, dst, path) for name, words, src, dst, path in pairs
    ]
