"""vLLM's specifications, read from its objects and from plain values."""

from __future__ import annotations

import dataclasses
import enum
from fractions import Fraction
from typing import Any

import pytest

from transload_abi.builders.vllm_read import plain, read_config, read_spec
from transload_abi.builders.vllm_spec import Attention, KVCacheConfig, MambaSpec
from transload_abi.errors import Contradiction, MalformedDescriptor, UnknownPart

FULL: dict[str, Any] = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 8,
    "head_size": 128,
    "dtype": "torch.bfloat16",
}
LATENT = FULL | {"class": "MLAAttentionSpec", "num_kv_heads": 1, "head_size": 576}
STATE: dict[str, Any] = {
    "class": "MambaSpec",
    "block_size": 64,
    "shapes": [[3, 48], [4, 8, 16]],
    "dtypes": ["bfloat16", "torch.float32"],
}


class Mode(enum.IntEnum):
    NONE = 0


class Dtype:
    def __str__(self) -> str:
        return "torch.bfloat16"


@dataclasses.dataclass(frozen=True)
class Aligned:
    """As a specification of vLLM's whose alignment is counted in kernel blocks."""

    block_size: int
    kv_quant_mode: Mode
    dtype: Dtype
    tokens_per_state: Fraction
    shapes: tuple[tuple[int, ...], ...]
    block_stride_alignment: object

    def get_block_stride_alignment(self) -> int:
        return 576


def attention(**fields: Any) -> Attention:
    spec = read_spec(FULL | fields)
    assert isinstance(spec, Attention)
    return spec


def test_an_object_becomes_plain_values_with_its_class() -> None:
    found = plain(Aligned(16, Mode.NONE, Dtype(), Fraction(1, 2), ((3, 4),), object()))
    assert found == {
        "class": "Aligned",
        "block_size": 16,
        "kv_quant_mode": "NONE",
        "dtype": "torch.bfloat16",
        "tokens_per_state": [1, 2],
        "shapes": [[3, 4]],
        "block_stride_alignment": 576,
    }


def test_a_mapping_is_made_plain_by_its_values() -> None:
    found = plain({"model.layers.0": Aligned(16, Mode.NONE, Dtype(), Fraction(2), (), None)})
    assert found["model.layers.0"]["tokens_per_state"] == [2, 1]


def test_a_specification_without_alignment_has_none() -> None:
    found = plain(Aligned(16, Mode.NONE, Dtype(), Fraction(1, 2), (), None))
    assert found["block_stride_alignment"] is None


def test_values_are_as_large_as_keys_unless_told() -> None:
    assert attention().value_size == 128
    assert attention(head_size_v=64).value_size == 64
    assert attention(head_size_v=64).cell_bytes == 384


def test_latents_have_no_values() -> None:
    spec = read_spec(LATENT)
    assert isinstance(spec, Attention)
    assert (spec.value_size, spec.cell_bytes) == (0, 1152)


@pytest.mark.parametrize(
    ("told", "fraction", "num_states"),
    [(1, (1, 1), 16), (4, (4, 1), 4), ([1, 2], (1, 2), 32), ([2, 4], (1, 2), 32)],
)
def test_tokens_per_state_are_in_lowest_terms(
    told: object, fraction: tuple[int, int], num_states: int
) -> None:
    spec = attention(tokens_per_state=told)
    assert (spec.state_tokens, spec.num_states) == (fraction, num_states)


@pytest.mark.parametrize(
    ("told", "message"), [(3, "3/1 tokens per state"), (0, "above 0"), ([1, 0], "above 0")]
)
def test_states_that_do_not_fill_a_block_contradict(told: object, message: str) -> None:
    with pytest.raises(Contradiction, match=message):
        _ = attention(tokens_per_state=told).num_states


def test_a_state_is_flattened() -> None:
    spec = read_spec(STATE)
    assert isinstance(spec, MambaSpec)
    assert (spec.sizes, spec.cell_bytes, spec.page_bytes) == ((144, 512), 2336, 2336)


@pytest.mark.parametrize(("fields", "least"), [(FULL, 65536), (STATE, 2336)])
def test_a_pad_is_not_less_than_the_page(fields: dict[str, Any], least: int) -> None:
    assert read_spec(fields | {"page_size_padded": least + 64}).page_bytes == least + 64
    with pytest.raises(Contradiction, match=f"{least - 1} bytes are less than"):
        _ = read_spec(fields | {"page_size_padded": least - 1}).page_bytes


def test_states_and_dtypes_are_as_many() -> None:
    with pytest.raises(Contradiction, match="2 shapes and 1 dtypes"):
        _ = read_spec(STATE | {"dtypes": ["float32"]}).page_bytes


@pytest.mark.parametrize(
    "name",
    [
        "HiddenStateCacheSpec",
        "HiSparseHotSpec",
        "HiSparseResidentSpec",
        "EncoderOnlyAttentionSpec",
        None,
    ],
)
def test_a_class_without_a_description_is_refused_by_name(name: str | None) -> None:
    with pytest.raises(UnknownPart, match=f"kv_cache_spec: '{name}' is a cache"):
        read_spec(FULL | {"class": name})


def test_a_field_of_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(UnknownPart, match=r"kv_cache_spec\.swizzle: no such field"):
        read_spec(FULL | {"swizzle": True})


@pytest.mark.parametrize("change", [{"block_size": "16"}, {"head_size": None}, {"dtype": 3}])
def test_a_field_of_another_type_is_malformed(change: dict[str, Any]) -> None:
    with pytest.raises(MalformedDescriptor, match="kv_cache_spec: Expected"):
        read_spec(FULL | change)


def test_a_missing_field_is_malformed() -> None:
    with pytest.raises(MalformedDescriptor, match="sliding_window"):
        read_spec(FULL | {"class": "SlidingWindowSpec"})


def test_what_is_read_is_not_read_again() -> None:
    spec = read_spec(FULL)
    assert read_spec(spec) is spec


def config(**fields: Any) -> dict[str, Any]:
    group = {"layer_names": ["a.0", "a.1"], "kv_cache_spec": FULL, "is_eagle_group": False}
    tensor = {"size": 10, "layers": ["a.0", "a.1"], "layer_stride": 5, "block_stride": 1}
    return {
        "class": "KVCacheConfig",
        "num_blocks": 5,
        "kv_cache_tensors": [{"class": "KVCacheTensor"} | tensor],
        "kv_cache_groups": [{"class": "KVCacheGroupSpec"} | group],
        "hash_block_size": 16,
    } | fields


def test_a_configuration_is_read_without_the_schedulers_part() -> None:
    found = read_config(config())
    assert isinstance(found, KVCacheConfig)
    assert found.kv_cache_groups[0].specs == {"a.0": read_spec(FULL), "a.1": read_spec(FULL)}
    assert found.kv_cache_tensors[0].layers == ("a.0", "a.1")
    assert read_config(found) is found


def test_layers_that_differ_have_their_own_specifications() -> None:
    each = {"a.0": FULL, "a.1": FULL | {"head_size": 64}}
    uniform = {"class": "UniformTypeKVCacheSpecs", "block_size": 16, "kv_cache_specs": each}
    group = {"layer_names": ["a.0", "a.1"], "kv_cache_spec": uniform}
    found = read_config(config(kv_cache_groups=[group])).kv_cache_groups[0]
    assert [spec.page_bytes for spec in found.specs.values()] == [65536, 32768]


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"later": 1}, "later"),
        ({"kv_cache_groups": [{"layer_names": [], "later": 1}]}, r"kv_cache_groups\[0\]\.later"),
        ({"kv_cache_tensors": [{"later": 1}]}, r"kv_cache_tensors\[0\]\.later"),
        (
            {"kv_cache_groups": [{"layer_names": ["a"], "kv_cache_spec": FULL | {"later": 1}}]},
            r"kv_cache_groups\[0\]\.kv_cache_spec\.later",
        ),
    ],
)
def test_an_unknown_field_is_named_by_its_path(fields: dict[str, Any], path: str) -> None:
    with pytest.raises(UnknownPart, match=f"^{path}: "):
        read_config(config(**fields))


def test_a_configuration_without_blocks_is_malformed() -> None:
    with pytest.raises(MalformedDescriptor, match="num_blocks"):
        read_config({"kv_cache_tensors": [], "kv_cache_groups": []})


REPLICA = {"class": "HiSparseResidentSpec", "block_size": 16, "page_size": 4096}


@pytest.mark.parametrize(
    "fields",
    [
        {"kv_cache_spec": REPLICA, "enable_kv_transfer": False},
        {
            "kv_cache_spec": REPLICA | {"class": "HiSparseHotSpec", "blocks_per_request": 4},
            "enable_kv_transfer": False,
        },
        {"kv_cache_spec": FULL | {"class": "EncoderOnlyAttentionSpec"}},
    ],
)
def test_what_no_other_can_read_has_no_specification(fields: dict[str, Any]) -> None:
    group = {"layer_names": ["a.0", "a.1"]} | fields
    assert read_config(config(kv_cache_groups=[group])).kv_cache_groups[0].specs == {}


def test_a_replica_is_not_transferred() -> None:
    group = {"layer_names": ["a.0"], "kv_cache_spec": REPLICA}
    with pytest.raises(Contradiction, match="HiSparseResidentSpec that is to be transferred"):
        read_config(config(kv_cache_groups=[group]))
