"""vLLM's page formats by their specifications, against the same formats written out by hand."""

from typing import Any, NamedTuple

import pytest

from support import abi_formats
from support.abi_formats import FORMATS, SIGNS
from transload_abi import fingerprints
from transload_abi.builders import Interior, vllm
from transload_abi.builders.vllm_cells import HADAMARD
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.canonical import canonical
from transload_abi.types import Descriptor, Model, Rope

MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"))
NAME = "model.layers.0.self_attn.attn"
FACTS = vllm.Facts(model=MODEL, scales={NAME: (1.0, 1.0)})

FULL: dict[str, Any] = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 8,
    "head_size": 128,
    "dtype": "bfloat16",
}
LATENT = FULL | {
    "class": "MLAAttentionSpec",
    "block_size": 64,
    "num_kv_heads": 1,
    "head_size": 576,
    "max_tp_shards": 1,
}
ONE = {"num_kv_heads": 1, "max_tp_shards": 1}
V4 = LATENT | {"block_size": 256, "head_size": 512, "model_version": "deepseek_v4"}
PACKED_V4 = {"dtype": "uint8", "cache_dtype_str": "fp8_ds_mla", "kv_quant_mode": "FP8_PER_TENSOR"}
V41 = V4 | {"block_size": 128, "tokens_per_state": 4}
WINDOW = {"class": "SlidingWindowMLASpec", "sliding_window": 128}
COMPRESSOR = WINDOW | ONE | {"dtype": "float32"}
RING = ONE | {"class": "CircularBufferSpec", "block_size": 8, "head_size_v": 0}
KEYS = LATENT | {"block_size": 128, "head_size": 128}


def packed(mode: str, content: int | None = None, slots: int | None = None) -> dict[str, Any]:
    fields: dict[str, Any] = {"dtype": "uint8", "kv_quant_mode": mode}
    return FULL | fields | {"state_content_bytes": content, "num_head_slots": slots}


def planes() -> dict[str, Any]:
    return FULL | {"num_head_slots": 2, "state_content_bytes": 2048}


class Case(NamedTuple):
    """A row of the table: specification, interior, bytes of a padded page."""

    spec: dict[str, Any]
    interior: dict[str, Any] | None = None
    padded: int | None = None


STATES = {
    "class": "MambaSpec",
    "block_size": 16,
    "shapes": [[24576, 1], [64, 128, 128]],
    "dtypes": ["bfloat16", "float32"],
}
CASES: dict[str, Case] = {
    "bf16": Case(FULL),
    "f16": Case(FULL | {"dtype": "half"}),
    "f32": Case(FULL | {"dtype": "float32"}),
    "fp8": Case(packed("FP8_PER_TENSOR")),
    "fp8 e5m2": Case(packed("FP8_PER_TENSOR"), {"float8": "e5m2"}),
    "diff_kv": Case(FULL | {"head_size": 192, "head_size_v": 128}),
    "cpu": Case(FULL, {"name": "cpu"}),
    "per_token_head i8": Case(packed("INT8_PER_TOKEN_HEAD", 264) | {"dtype": "int8"}),
    "per_token_head e4m3": Case(packed("FP8_PER_TOKEN_HEAD", 264)),
    "int4": Case(packed("INT4_PER_TOKEN_HEAD", 136), {"rotation": SIGNS}),
    "nvfp4": Case(packed("NVFP4", 72, 16), {"name": "nvfp4_linear"}),
    "nvfp4 swizzled": Case(packed("NVFP4", 72, 16), {"name": "nvfp4_trtllm_gen"}),
    "nvfp4 slots": Case(packed("NVFP4", 72, 16), {"name": "nvfp4_msa"}),
    "turboquant k8v4": Case(packed("TURBOQUANT_K8V4", 196), {"tables": SIGNS}),
    "turboquant 4bit": Case(packed("TURBOQUANT_4BIT_NC", 134), {"tables": SIGNS}),
    "turboquant k3v4": Case(packed("TURBOQUANT_K3V4_NC", 118), {"tables": SIGNS}),
    "turboquant 3bit": Case(packed("TURBOQUANT_3BIT_NC", 102), {"tables": SIGNS}),
    "ultraquant": Case(packed("ULTRAQUANT_4BIT", 136)),
    "rocm": Case(planes(), {"name": "rocm_planes"}),
    "aiter": Case(planes(), {"name": "aiter_tiles"}),
    "planes": Case(planes(), {"name": "planes"}),
    "mla": Case(LATENT),
    "mla fp8": Case(LATENT | {"dtype": "uint8", "kv_quant_mode": "FP8_PER_TENSOR"}),
    "656": Case(LATENT | PACKED_V4 | {"state_content_bytes": 656}),
    "352": Case(
        LATENT
        | {"dtype": "uint8", "state_content_bytes": 352}
        | {"cache_dtype_str": "nvfp4_ds_mla", "kv_quant_mode": "NVFP4_DS_MLA"}
    ),
    "132": Case(LATENT | {"dtype": "uint8", "head_size": 132, "cache_role": "INDEXER"}),
    "584 c4": Case(
        V4 | PACKED_V4 | {"state_content_bytes": 584, "tokens_per_state": 4}, None, 37440
    ),
    "584 c128": Case(
        V4 | PACKED_V4 | {"state_content_bytes": 584, "tokens_per_state": 128}, None, 1728
    ),
    "584 window": Case(
        V4 | PACKED_V4 | WINDOW | {"block_size": 64, "state_content_bytes": 584}, None, 37440
    ),
    "v4 c4 bf16": Case(V4 | {"tokens_per_state": 4}),
    "v4 132": Case(
        LATENT | {"block_size": 256, "head_size": 132, "dtype": "uint8", "tokens_per_state": 4},
        {"name": "indexer"},
        8640,
    ),
    "v4 68": Case(
        LATENT | {"block_size": 256, "head_size": 68, "dtype": "uint8", "tokens_per_state": 4},
        {"name": "indexer"},
        4608,
    ),
    "v4 compressor c4": Case(
        COMPRESSOR | {"block_size": 4, "head_size": 2048, "sliding_window": 8},
        {"name": "compressor"},
        32832,
    ),
    "v4 compressor c128": Case(
        COMPRESSOR | {"block_size": 8, "head_size": 1024}, {"name": "compressor"}, 32832
    ),
    "528": Case(V41 | PACKED_V4 | {"state_content_bytes": 528}),
    "288": Case(
        V41
        | PACKED_V4
        | {"cache_dtype_str": "nvfp4_ds_mla", "kv_quant_mode": "NVFP4_DS_MLA"}
        | {"state_content_bytes": 288}
    ),
    "compressor ring": Case(RING | {"head_size": 1024, "dtype": "float32"}, {"name": "compressor"}),
    "minimax_m3": Case(FULL | {"block_size": 128, "num_kv_heads": 4}),
    "minimax_m3 indexer": Case(KEYS | {"cache_role": "INDEXER"}),
    "key ring": Case(
        RING | {"head_size": 140, "dtype": "bfloat16"},
        {"name": "key_ring", "position_elements": 128},
    ),
    "compressed keys": Case(KEYS | {"tokens_per_state": 4}, {"name": "indexer"}),
    "recurrent": Case(STATES, {"conv_order": "DS"}),
    "cross": Case(FULL | {"class": "CrossAttentionSpec"}),
    "pooled": Case(FULL | {"tokens_per_state": [1, 2]}),
    "opaque": Case(FULL, {"name": "page", "opaque": "engine 1.0, backend X"}),
}
each_case = pytest.mark.parametrize("name", CASES)


def built(case: Case, num_blocks: int = 2) -> Descriptor:
    """A pool of one layer, as vLLM places it alone."""
    spec = case.spec if case.padded is None else case.spec | {"page_size_padded": case.padded}
    dense = strides(read_spec(spec), "BLHNC", 1, num_blocks)
    tensor = {
        "size": num_blocks * read_spec(spec).page_bytes,
        "layers": [NAME],
        "layer_stride": dense.layer,
        "block_stride": dense.block,
    }
    config = {
        "num_blocks": num_blocks,
        "kv_cache_tensors": [tensor],
        "kv_cache_groups": [{"layer_names": [NAME], "kv_cache_spec": spec}],
    }
    interior = Interior(**(case.interior or {}))
    return vllm.descriptor(config, facts=FACTS, interior=interior, layout="BLHNC")


def by_hand(name: str) -> Descriptor:
    """With vLLM's own rotation of keys where the format has one that is always the same."""
    found = canonical(FORMATS[name][0]())
    if name == "ultraquant":
        assert found.groups[0].codec.params == {"rotation.k": SIGNS}
        found.groups[0].codec.params["rotation.k"] = HADAMARD
    return found


def test_every_format_is_built() -> None:
    elsewhere = {"int4 unrotated", "recurrent by head"}
    assert set(FORMATS) - set(CASES) == elsewhere
    assert set(CASES) <= set(FORMATS)


@each_case
def test_a_page_is_what_is_written_out_by_hand(name: str) -> None:
    found, due = built(CASES[name]), by_hand(name)
    assert found.groups[0].roles == due.groups[0].roles
    assert found.groups[0].codec == due.groups[0].codec
    assert fingerprints.of_descriptor(found).page == fingerprints.of_descriptor(due).page


@each_case
def test_a_group_is_what_is_written_out_by_hand(name: str) -> None:
    found, due = built(CASES[name]), by_hand(name)
    for field in ("kind", "window", "tokens_per_block", "tokens_per_state", "owner", "opaque"):
        assert getattr(found.groups[0], field) == getattr(due.groups[0], field), field
    assert found.groups[0].places == due.groups[0].places
    assert found.pools == due.pools


@each_case
def test_a_page_has_the_bytes_of_the_table(name: str) -> None:
    assert built(CASES[name]).groups[0].places[0].page_bytes == FORMATS[name][1]


def test_swizzled_scales_are_where_the_kernel_looks_for_them() -> None:
    found = built(CASES["nvfp4 swizzled"]).groups[0]
    role = found.role("v_group_scale")
    assert role is not None
    due = abi_formats.nvfp4(is_swizzled=True).groups[0].role("v_group_scale")
    assert due is not None
    for token, group in ((0, 0), (1, 0), (5, 3), (15, 7)):
        at = 4 * 8 * (token // 4) + 4 * group + token % 4
        assert role.base_bits == due.base_bits
        index = {"H": 0, "N": token, "G": group}
        bits = sum(index[axis] // div % extent * stride for axis, div, extent, stride in role.terms)
        assert bits == 8 * at
