"""What is inside of vLLM's pages: the format that a specification and an interior come to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from transload_abi.builders import vllm_cells, vllm_index, vllm_planes
from transload_abi.builders.vllm_interior import Interior
from transload_abi.builders.vllm_latents import latents
from transload_abi.builders.vllm_layout import Strides
from transload_abi.builders.vllm_roles import Page, role
from transload_abi.builders.vllm_spec import (
    Attention,
    CircularBufferSpec,
    MambaSpec,
    MLAAttentionSpec,
    SlidingWindowMLASpec,
    Spec,
)
from transload_abi.builders.vllm_states import states
from transload_abi.errors import Contradiction, LimitExceeded, UnknownPart
from transload_abi.limits import MAX_AXIS, MAX_QUOTED_CHARS

Format = Callable[[Attention, Strides, Interior], Page]

_PLAIN: Final[Mapping[str, Format]] = {
    "packed": vllm_cells.cells,
    "cpu": vllm_planes.transposed,
    "rocm_planes": vllm_planes.rocm_planes,
    "aiter_tiles": vllm_planes.aiter_tiles,
    "planes": vllm_planes.planes,
}
_TURBOQUANT: Final[Mapping[str, Format]] = {
    "packed": vllm_cells.turboquant_cells,
    "turboquant_regions": vllm_planes.turboquant_regions,
}
FORMATS: Final[Mapping[str, Mapping[str, Format]]] = {
    "NONE": _PLAIN,
    "FP8_PER_TENSOR": _PLAIN,
    "INT8_PER_TOKEN_HEAD": {"packed": vllm_cells.scaled_cells},
    "FP8_PER_TOKEN_HEAD": {"packed": vllm_cells.scaled_cells},
    "INT4_PER_TOKEN_HEAD": {"packed": vllm_cells.int4_cells},
    "NVFP4": {
        "nvfp4_linear": vllm_planes.nvfp4_regions,
        "nvfp4_trtllm_gen": vllm_planes.nvfp4_regions,
        "nvfp4_msa": vllm_planes.nvfp4_slots,
    },
    **dict.fromkeys(vllm_cells.TURBOQUANT, _TURBOQUANT),
    "ULTRAQUANT_4BIT": {"packed": vllm_cells.ultraquant_cells},
}
"""Of keys and values: by `KVQuantMode` and interior."""

_BESIDE: Final[Mapping[str, Format]] = {
    "indexer": vllm_index.indexer,
    "compressor": vllm_index.compressor,
    "index_compressor": vllm_index.compressor,
    "key_ring": vllm_index.key_ring,
}
"""Caches beside keys and values, which are not quantised as such."""


def pages(spec: Spec, where: Strides, interior: Interior) -> tuple[Page, ...]:
    """What a page holds; several where a recurrent layer's parts count their heads differently.

    Raises:
        UnknownPart: A format that this version cannot describe, by its name.
        Contradiction: The cell's bytes are not what the format comes to.
    """
    if interior.name == "page":
        return (_bytes(spec, where, interior),)
    if isinstance(spec, MambaSpec):
        return states(spec, interior)
    return (_attention(spec, where, interior),)


def _attention(spec: Attention, where: Strides, interior: Interior) -> Page:
    name = interior.name
    if isinstance(spec, MLAAttentionSpec) and spec.cache_role != "SPARSE":
        if spec.cache_role != "INDEXER" or name not in ("packed", "indexer"):
            raise UnknownPart(
                f"the cache of an {spec.cache_role[:MAX_QUOTED_CHARS]} in {name} pages",
                "cache_role",
            )
        name = "indexer"
    if name in _BESIDE:
        if spec.kv_quant_mode != "NONE":
            raise UnknownPart(f"{spec.kv_quant_mode} in {name} pages", "interior")
        return _BESIDE[name](spec, where, interior)
    if isinstance(spec, CircularBufferSpec):
        raise UnknownPart(f"a ring in {name} pages", "interior")
    if isinstance(spec, MLAAttentionSpec | SlidingWindowMLASpec):
        return latents(spec, where, interior)
    formats = FORMATS.get(spec.kv_quant_mode)
    if formats is None:
        raise UnknownPart(
            f"{spec.kv_quant_mode[:MAX_QUOTED_CHARS]} is a format that this version cannot "
            "describe",
            "kv_quant_mode",
        )
    if name not in formats:
        raise UnknownPart(f"{spec.kv_quant_mode} in {name} pages", "interior")
    return formats[name](spec, where, interior)


def _bytes(spec: Spec, where: Strides, interior: Interior) -> Page:
    """All of a page that nobody describes."""
    if not interior.opaque:
        raise Contradiction("a page that nobody describes needs its writer's name", "opaque")
    if not where.is_whole:
        raise Contradiction("a page of bytes needs to be in one piece", "layout")
    size = spec.num_slots * spec.num_states * spec.cell_bytes
    if size > MAX_AXIS:
        raise LimitExceeded(f"a page of {size} bytes is above {MAX_AXIS}", "interior")
    return Page("opaque", (role("page", "u8", (("D", 1, size, 8),)),))
