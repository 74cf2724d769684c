"""Reads vLLM's specifications: from its objects, from JSON, or as a person writes them.

vLLM itself is not imported: `plain` reads its objects by their fields, `read_spec` and
`read_config` take what it gives, or the same written by hand or read from JSON::

    {"class": "FullAttentionSpec", "block_size": 16, "num_kv_heads": 8, "head_size": 128,
     "dtype": "bfloat16", "kv_quant_mode": "NONE", "page_size_padded": null}

A field left out has vLLM's default. A class or a field that is not here is refused by its name: it
might say that the bytes are something else.
"""

from __future__ import annotations

import dataclasses
import enum
import fractions
from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from transload_abi.builders.vllm_spec import (
    ChunkedLocalAttentionSpec,
    CircularBufferSpec,
    CrossAttentionSpec,
    FullAttentionSpec,
    KVCacheConfig,
    KVCacheGroup,
    KVCacheTensor,
    MambaSpec,
    MLAAttentionSpec,
    RSWASpec,
    SinkFullAttentionSpec,
    SlidingWindowMLASpec,
    SlidingWindowSpec,
    Spec,
)
from transload_abi.errors import Contradiction, MalformedDescriptor, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS

_SPECS: Final[dict[str, type[Any]]] = {
    each.__name__: each
    for each in (
        FullAttentionSpec,
        SlidingWindowSpec,
        ChunkedLocalAttentionSpec,
        CrossAttentionSpec,
        RSWASpec,
        SinkFullAttentionSpec,
        CircularBufferSpec,
        MLAAttentionSpec,
        SlidingWindowMLASpec,
        MambaSpec,
    )
}

_REPLICAS: Final = frozenset({"HiSparseHotSpec", "HiSparseResidentSpec"})
"""What the engine keeps on its device of a cache in host memory (`hisparse/layout.py` @ 0.32.0):
its pages have no view of their own, and it makes them again from that cache."""

_HOLD_NOTHING: Final = frozenset({"EncoderOnlyAttentionSpec"})

_SCHEDULER_ONLY: Final = frozenset(
    {
        "prefix_cache_retention_interval",
        "hash_block_size",
        "cache_hit_alignment_tokens",
        "hisparse_host_block_stride",
        "kv_tp_replicas",
    }
)
_GROUP_FIELDS: Final = frozenset(
    {"layer_names", "kv_cache_spec", "host_resident", "enable_kv_transfer"}
)
_GROUP_IGNORED: Final = frozenset({"is_eagle_group", "role"})


def read_spec(value: Mapping[str, Any] | Spec, path: str = "kv_cache_spec") -> Spec:
    """A specification of one layer from its plain form.

    Raises:
        UnknownPart: Its class or a field is not known here.
        MalformedDescriptor: A field is missing or of another type.
    """
    if isinstance(value, msgspec.Struct):
        return value
    name = value.get("class")
    if not isinstance(name, str) or name not in _SPECS:
        raise UnknownPart(
            f"{str(name)[:MAX_QUOTED_CHARS]!r} is a cache that this version cannot describe", path
        )
    return _convert(value, _SPECS[name], path)  # type: ignore[no-any-return]


def read_config(value: Mapping[str, Any] | KVCacheConfig) -> KVCacheConfig:
    """A configuration from its plain form.

    Raises:
        UnknownPart: A specification or a field is not known here.
        MalformedDescriptor: A field is missing or of another type.
    """
    if isinstance(value, KVCacheConfig):
        return value
    fields = {name: each for name, each in value.items() if name not in _SCHEDULER_ONLY}
    fields.pop("class", None)
    fields["kv_cache_tensors"] = [
        _convert(_without_class(each), KVCacheTensor, f"kv_cache_tensors[{index}]")
        for index, each in enumerate(fields.get("kv_cache_tensors", ()))
    ]
    fields["kv_cache_groups"] = [
        _read_group(each, f"kv_cache_groups[{index}]")
        for index, each in enumerate(fields.get("kv_cache_groups", ()))
    ]
    return _convert(fields, KVCacheConfig, "")  # type: ignore[no-any-return]


def plain(value: Any) -> Any:
    """The plain form of vLLM's objects: dataclasses become mappings with their `class`.

    Enumerations become their names, fractions `[numerator, denominator]`, dtypes their text.
    Values that are cached or derived are left out: only fields are read.
    """
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        found = {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
        alignment = getattr(value, "get_block_stride_alignment", None)
        if found.get("block_stride_alignment") is not None and alignment is not None:
            found["block_stride_alignment"] = alignment()
        return {"class": type(value).__name__, **found}
    if isinstance(value, enum.Enum):
        return value.name
    if isinstance(value, fractions.Fraction):
        return [value.numerator, value.denominator]
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Mapping):
        return {str(name): plain(each) for name, each in value.items()}
    if isinstance(value, Sequence):
        return [plain(each) for each in value]
    return str(value)


def _read_group(value: Mapping[str, Any], path: str) -> KVCacheGroup:
    unknown = set(value) - _GROUP_FIELDS - _GROUP_IGNORED - {"class"}
    if unknown:
        raise UnknownPart("no such field is known here", f"{path}.{min(unknown)}")
    names, spec = tuple(value.get("layer_names", ())), value.get("kv_cache_spec", {})
    transfer = bool(value.get("enable_kv_transfer", True))
    return KVCacheGroup(
        layer_names=names,
        specs=_layer_specs(names, spec, transfer, f"{path}.kv_cache_spec"),
        host_resident=bool(value.get("host_resident", False)),
        enable_kv_transfer=transfer,
    )


def _layer_specs(
    names: Sequence[str], spec: Any, is_transferred: bool, path: str
) -> dict[str, Spec]:
    """By layer; none where the group has no pages that others could read."""
    name = spec.get("class") if isinstance(spec, Mapping) else None
    if name in _HOLD_NOTHING:
        return {}
    if name in _REPLICAS:
        if is_transferred:
            raise Contradiction(f"{name} that is to be transferred", path)
        return {}
    if name == "UniformTypeKVCacheSpecs":
        each = spec.get("kv_cache_specs", {})
        return {layer: read_spec(one, f"{path}.{layer}") for layer, one in each.items()}
    return dict.fromkeys(names, read_spec(spec, path))


def _without_class(value: Mapping[str, Any]) -> dict[str, Any]:
    return {name: each for name, each in value.items() if name != "class"}


def _convert(value: Mapping[str, Any], kind: type[Any], path: str) -> Any:
    known = {each.name for each in msgspec.structs.fields(kind)} | {"class"}
    unknown = sorted(set(value) - known)
    if unknown:
        raise UnknownPart("no such field is known here", f"{path}.{unknown[0]}".lstrip("."))
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        raise MalformedDescriptor(str(error), path) from error
