"""What vLLM's pages hold: against placements written out by hand, and each format's own bytes."""

from __future__ import annotations

from typing import Any

import pytest

from support import abi_placements
from support.abi_addresses import byte_of
from support.abi_placements import LAYOUTS, SHAPE, Shape
from transload_abi.builders import Interior, vllm
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.canonical import canonical
from transload_abi.errors import Contradiction, DescriptorError, UnknownPart
from transload_abi.types import Descriptor, Group, Model, Rope

MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"))
FACTS = vllm.Facts(model=MODEL)
NAMES = tuple(f"model.layers.{number}.self_attn.attn" for number in range(3))
PLACED = vllm.Placed(NAMES, 5)
FULL: dict[str, Any] = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 2,
    "head_size": 32,
    "dtype": "bfloat16",
}
PLANES = FULL | {"num_head_slots": 2, "state_content_bytes": 2 * 32 * 2}
LATENT = FULL | {"class": "MLAAttentionSpec", "num_kv_heads": 1, "head_size": 576}
FP8 = {"dtype": "uint8", "kv_quant_mode": "FP8_PER_TENSOR"}
DS_MLA = LATENT | FP8 | {"cache_dtype_str": "fp8_ds_mla", "state_content_bytes": 656}
SCALES = {name: (0.5, 2.0 + number) for number, name in enumerate(NAMES)}


def group(
    spec: dict[str, Any], layout: str = "LBHNC", placed: vllm.Placed = PLACED, **interior: Any
) -> Group:
    facts = vllm.Facts(model=MODEL, scales=SCALES)
    return vllm.group_of(spec, layout, placed, facts=facts, interior=Interior(**interior))


def built(spec: dict[str, Any], layout: str, shape: Shape, **interior: Any) -> Descriptor:
    """A pool of one group, as vLLM places it alone."""
    names = [f"model.layers.{number}.self_attn.attn" for number in range(shape.layers)]
    dense = strides(read_spec(spec), layout, shape.layers, shape.blocks)
    tensor = {
        "size": shape.layers * shape.blocks * read_spec(spec).page_bytes,
        "layers": names,
        "layer_stride": dense.layer,
        "block_stride": dense.block,
    }
    config = {
        "num_blocks": shape.blocks,
        "kv_cache_tensors": [tensor],
        "kv_cache_groups": [{"layer_names": names, "kv_cache_spec": spec}],
    }
    return vllm.descriptor(config, facts=FACTS, interior=Interior(**interior), layout=layout)


def spec_of(shape: Shape, **fields: Any) -> dict[str, Any]:
    dtype = {"bf16": "bfloat16", "f32": "float32", "f16": "half"}[shape.dtype]
    return FULL | {
        "block_size": shape.tokens,
        "num_kv_heads": shape.heads,
        "head_size": shape.size,
        "dtype": dtype,
        **fields,
    }


def same_placement(found: Descriptor, by_hand: Descriptor) -> None:
    """Equal but for what a placement by hand does not know."""
    due = canonical(by_hand)
    assert found.groups[0].roles == due.groups[0].roles
    assert found.groups[0].places == due.groups[0].places
    assert [(p.num_bytes, p.num_blocks, p.block_bytes) for p in found.pools] == [
        (p.num_bytes, p.num_blocks, p.block_bytes) for p in due.pools
    ]
    assert found.groups[0].owner == due.groups[0].owner
    assert found.groups[0].null_block == due.groups[0].null_block


SHAPES = [
    SHAPE,
    Shape(layers=3, blocks=7, heads=2, tokens=16, size=32, dtype="f32"),
    Shape(heads=1, tokens=4, size=8, dtype="f16"),
]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_packed_cells_are_where_the_layout_puts_them(layout: str, shape: Shape) -> None:
    found = built(spec_of(shape), layout, shape)
    if shape.heads > 1:
        same_placement(found, abi_placements.vllm(layout, shape))
    else:  # a page of one head is in one piece even where heads are outside of it
        due = canonical(abi_placements.vllm(layout, shape)).groups[0]
        assert found.groups[0].roles == due.roles
        assert found.groups[0].places[0].page_bytes == 2 * shape.tokens * shape.size * 2


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_cpu_pages_hold_keys_transposed(shape: Shape) -> None:
    same_placement(
        built(spec_of(shape), "LBHNC", shape, name="cpu"), abi_placements.vllm_cpu(shape)
    )


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_rocm_pages_are_two_planes(shape: Shape) -> None:
    content = shape.heads * shape.size * shape.bits // 8
    spec = spec_of(shape, num_head_slots=2, state_content_bytes=content)
    same_placement(built(spec, "LBHNC", shape, name="rocm_planes"), abi_placements.rocm(shape))


def test_planes_outside_of_blocks_are_two_places() -> None:
    found = group(PLANES, "LHBNC", name="rocm_planes")
    half = 2 * 16 * 32 * 2
    assert [(p.offset, p.block_stride, p.layer_stride, p.page_bytes) for p in found.places] == [
        (0, half, 10 * half, half),
        (5 * half, half, 10 * half, half),
    ]
    assert [(role.role, role.place, role.base_bits) for role in found.roles] == [
        ("k", 0, 0),
        ("v", 1, 0),
    ]


@pytest.mark.parametrize("layout", ["LBNHC", "BLNHC"])
def test_planes_are_each_in_one_piece(layout: str) -> None:
    with pytest.raises(Contradiction, match="planes need two slots, each in one piece"):
        group(PLANES, layout, name="rocm_planes")


@pytest.mark.parametrize("bits", [8, 16])
def test_an_element_in_planes_is_by_pieces_of_16_bytes(bits: int) -> None:
    size = bits // 8
    spec = PLANES | {"state_content_bytes": 64 * size} | (FP8 if bits == 8 else {})
    found, x = group(spec, name="rocm_planes"), 16 // size
    place = {"layer": 2, "block": 4, "H": 1, "N": 3}
    page = (2 * 5 + 4) * 2 * 16 * 64 * size
    plane = 16 * 32 * size
    assert byte_of(found, "k", **place, D=19) == (
        page + plane + ((19 // x) * 16 * x + 3 * x + 19 % x) * size
    )
    assert byte_of(found, "v", **place, D=19) == page + 2 * plane + plane + (19 * 16 + 3) * size


@pytest.mark.parametrize("kernel", [4, 16])
def test_cpu_pages_are_cut_into_kernel_blocks(kernel: int) -> None:
    found = group(FULL, name="cpu", kernel_block_size=kernel)
    n = 13
    block = (1 * 5 + 4) * 2 * 16 * 64 * 2 + n // kernel * 2 * kernel * 64 * 2
    head = block + 1 * kernel * 64 * 2
    place = {"layer": 1, "block": 4, "H": 1, "N": n, "D": 19}
    assert byte_of(found, "k", **place) == head + (19 * kernel + n % kernel) * 2
    assert byte_of(found, "v", **place) == head + (kernel * 32 + n % kernel * 32 + 19) * 2


@pytest.mark.parametrize("layout", ["LBNHC", "BLNHC"])
def test_cpu_pages_need_a_head_in_one_piece(layout: str) -> None:
    with pytest.raises(Contradiction, match="a head in one piece"):
        group(FULL, layout, name="cpu")


def test_keys_and_values_may_differ_in_size() -> None:
    found = group(FULL | {"head_size": 48, "head_size_v": 32})
    assert [(r.shape["D"], r.base_bits) for r in found.roles] == [(48, 0), (32, 48 * 16)]
    with pytest.raises(Contradiction, match="equal K and V"):
        group(FULL | {"head_size": 48, "head_size_v": 16}, name="cpu")


@pytest.mark.parametrize(
    ("mode", "dtype", "element"),
    [
        ("INT8_PER_TOKEN_HEAD", "int8", "i8"),
        ("FP8_PER_TOKEN_HEAD", "uint8", "e4m3"),
        ("FP8_PER_TOKEN_HEAD", "float8_e4m3fn", "e4m3"),
    ],
)
def test_scales_per_token_and_head_are_in_the_cell(mode: str, dtype: str, element: str) -> None:
    spec = FULL | {"dtype": dtype, "kv_quant_mode": mode, "state_content_bytes": 72}
    found = group(spec, "LBNHC")
    assert found.codec.id == "per_token_head"
    assert [(r.role, r.dtype, r.base_bits // 8) for r in found.roles] == [
        ("k", element, 0),
        ("k_scale", "f32", 32),
        ("v", element, 36),
        ("v_scale", "f32", 68),
    ]
    assert byte_of(found, "v_scale", layer=0, block=1, H=1, N=2) == 16 * 2 * 72 + 5 * 72 + 68


def test_an_8_bit_cache_carries_its_layers_scales() -> None:
    found = group(FULL | FP8, float8="e5m2")
    assert found.codec.id == "fp8_per_tensor"
    assert found.codec.params == {
        "scales.k": ["f32:3f000000"] * 3,
        "scales.v": ["f32:40000000", "f32:40400000", "f32:40800000"],
    }
    assert {role.dtype for role in found.roles} == {"e5m2"}


@pytest.mark.parametrize("scale", [0.1, float("inf")])
def test_a_scale_is_a_binary32(scale: float) -> None:
    facts = vllm.Facts(model=MODEL, scales={name: (scale, 1.0) for name in NAMES})
    with pytest.raises(DescriptorError, match=r"scales: .* is not a binary32"):
        vllm.group_of(FULL | FP8, "LBHNC", PLACED, facts=facts)


def test_a_missing_scale_is_named_by_its_layer() -> None:
    with pytest.raises(Contradiction, match=r"no scales for 'model\.layers\.0"):
        vllm.group_of(FULL | FP8, "LBHNC", PLACED, facts=FACTS)


def test_latents_and_their_rotary_part_share_a_cell() -> None:
    found = group(LATENT)
    assert (found.kind, found.owner.heads, found.codec.id) == ("mla", (0, 1, 1), "none")
    assert [(r.role, r.shape, r.base_bits) for r in found.roles] == [
        ("latent", {"N": 16, "D": 512}, 0),
        ("rope", {"N": 16, "D": 64}, 8192),
    ]
    assert byte_of(found, "rope", layer=2, block=1, N=3, D=7) == 11 * 18432 + 3 * 1152 + 1024 + 14


def test_latents_of_another_rank_are_told() -> None:
    found = group(LATENT | {"head_size": 320}, kv_lora_rank=256)
    assert [r.shape["D"] for r in found.roles] == [256, 64]
    assert [r.shape["D"] for r in group(LATENT | {"head_size": 320}).roles] == [256, 64]
    with pytest.raises(Contradiction, match="a latent of 321 of 320 elements is none"):
        group(LATENT | {"head_size": 320}, kv_lora_rank=321)
    with pytest.raises(Contradiction, match="a latent of 0 of 64 elements is none"):
        group(LATENT | {"head_size": 64})


def test_a_latent_may_have_no_rotary_part() -> None:
    found = group(LATENT | {"head_size": 512}, kv_lora_rank=512)
    assert [(r.role, r.shape) for r in found.roles] == [("latent", {"N": 16, "D": 512})]
    with pytest.raises(UnknownPart, match="8-bit latents without a rotary part"):
        group(LATENT | FP8 | {"head_size": 512}, kv_lora_rank=512)


def test_an_8_bit_latent_has_one_scale_for_both_parts() -> None:
    scales = {name: (0.25, 0.25) for name in NAMES}
    facts = vllm.Facts(model=MODEL, scales=scales)
    spec = LATENT | FP8 | {"cache_dtype_str": "fp8"}
    found = vllm.group_of(spec, "LBHNC", PLACED, facts=facts)
    assert found.codec.params == {
        "scales.latent": ["f32:3e800000"] * 3,
        "scales.rope": ["f32:3e800000"] * 3,
    }
    assert [(r.dtype, r.base_bits) for r in found.roles] == [("e4m3", 0), ("e4m3", 4096)]


def test_a_cell_of_656_bytes_has_three_parts() -> None:
    found = group(DS_MLA)
    assert found.codec.id == "fp8_ds_mla_656"
    assert [(r.role, r.dtype, r.shape, r.base_bits // 8) for r in found.roles] == [
        ("latent", "e4m3", {"N": 16, "D": 512}, 0),
        ("latent_scale", "f32", {"N": 16, "G": 4}, 512),
        ("rope", "bf16", {"N": 16, "D": 64}, 528),
    ]
    assert byte_of(found, "latent_scale", layer=0, block=1, N=2, G=3) == 18 * 656 + 524
    assert byte_of(found, "rope", layer=0, block=1, N=2, D=5) == 18 * 656 + 538


def test_states_are_flattened_one_after_the_other() -> None:
    spec = {
        "class": "MambaSpec",
        "block_size": 64,
        "shapes": [[3, 16], [2, 8, 16]],
        "dtypes": ["bfloat16", "float32"],
        "page_size_padded": 2048,
    }
    found = group(spec)
    assert (found.kind, found.tokens_per_block, found.tokens_per_state) == (
        "recurrent",
        64,
        (64, 1),
    )
    assert [(r.role, r.dtype, r.shape, r.base_bits) for r in found.roles] == [
        ("conv", "bf16", {"N": 1, "D": 48}, 0),
        ("ssm", "f32", {"N": 1, "D": 256}, 768),
    ]
    assert found.places[0].page_bytes == 2048
    with pytest.raises(UnknownPart, match="shapes: 1 states of KDA, not two"):
        group(spec | {"shapes": [[4]], "dtypes": ["float32"], "mamba_type": "KDA"})
    with pytest.raises(UnknownPart, match="u8 states"):
        group(spec | {"dtypes": ["uint8", "float32"]})


@pytest.mark.parametrize(
    ("fields", "kind", "window"),
    [
        ({}, "full", 0),
        ({"sliding_window": 128}, "full", 128),
        ({"attention_chunk_size": 64}, "full", 64),
        ({"class": "SlidingWindowSpec", "sliding_window": 96}, "sliding_window", 96),
        ({"class": "ChunkedLocalAttentionSpec", "attention_chunk_size": 48}, "chunked_local", 48),
        ({"class": "CrossAttentionSpec"}, "cross", 0),
        ({"class": "RSWASpec", "rswa_window": 32}, "full", 0),
        ({"class": "SinkFullAttentionSpec", "sink_len": 32}, "full", 0),
        (
            LATENT | {"class": "SlidingWindowMLASpec", "sliding_window": 512},
            "sliding_window_mla",
            512,
        ),
    ],
)
def test_the_class_is_the_kind(fields: dict[str, Any], kind: str, window: int) -> None:
    found = group(FULL | fields)
    assert (found.kind, found.window, found.id) == (kind, window, f"{kind}.0")


@pytest.mark.parametrize(("told", "states"), [([1, 2], 32), (4, 4)])
def test_states_are_not_always_tokens(told: object, states: int) -> None:
    found = group(FULL | {"tokens_per_state": told})
    assert (found.tokens_per_block, found.states_per_block) == (16, states)
    assert found.roles[0].shape["N"] == states


SCALED = {"kv_quant_mode": "INT8_PER_TOKEN_HEAD", "dtype": "int8", "state_content_bytes": 72}
REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"kv_quant_mode": "FP6"}, "packed", "FP6 is a format"),
    ({"kv_quant_mode": "NVFP4"}, "packed", "NVFP4 in packed pages"),
    ({"kv_quant_mode": "NVFP4_DS_MLA"}, "packed", "NVFP4_DS_MLA is a format"),
    ({"kv_quant_mode": "ULTRAQUANT_4BIT"}, "cpu", "ULTRAQUANT_4BIT in cpu pages"),
    ({}, "nvfp4_linear", "NONE in nvfp4_linear pages"),
    (LATENT | {"model_version": "deepseek_v5"}, "packed", "the caches of deepseek_v5"),
    (LATENT | {"cache_role": "INDEXER"}, "cpu", "the cache of an INDEXER in cpu pages"),
    (LATENT | {"cache_role": "LEADER"}, "packed", "the cache of an LEADER in packed pages"),
    (LATENT, "rocm_planes", "latents in rocm_planes pages"),
    (LATENT | {"num_head_slots": 2}, "packed", "latents in 2 slots"),
    (LATENT | SCALED | {"state_content_bytes": None}, "packed", "PER_TOKEN_HEAD latents"),
    ({"dtype": "uint8"}, "packed", "u8 elements without a quantisation"),
    ({"dtype": "int4"}, "packed", "no dtype 'int4'"),
    (PLANES, "packed", "2 slots of their own are no page of cells"),
    (PLANES, "cpu", "2 slots of their own are no page of cells"),
    (PLANES | SCALED, "rocm_planes", "PER_TOKEN_HEAD in rocm_planes pages"),
    (SCALED, "cpu", "PER_TOKEN_HEAD in cpu pages"),
]


@pytest.mark.parametrize(("fields", "interior", "message"), REFUSED)
def test_what_cannot_be_described_is_refused_by_name(
    fields: dict[str, Any], interior: str, message: str
) -> None:
    with pytest.raises(DescriptorError, match=message):
        group(FULL | fields, name=interior)


CONTRADICTIONS: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"state_content_bytes": 130}, {}, "130 bytes is not the 128 bytes"),
    (SCALED | {"state_content_bytes": 64}, {}, "64 bytes is not the 72 bytes"),
    (LATENT | {"cache_dtype_str": "fp8_ds_mla"} | FP8, {}, "576 bytes is not the 656"),
    (SCALED | {"dtype": "uint8"}, {}, "expected i8 elements, got u8"),
    (FP8 | {"dtype": "float8_e5m2"}, {}, "expected e4m3 elements, got e5m2"),
    (LATENT | FP8 | {"cache_dtype_str": "fp8_e5m2"}, {}, "fp8_e5m2 is not e4m3"),
    (DS_MLA, {"kv_lora_rank": 448}, "656 bytes has 512 and 64 elements"),
    (DS_MLA | {"head_size": 512}, {}, "656 bytes has 512 and 64 elements"),
    (LATENT | {"state_content_bytes": 1160}, {}, "1160 bytes is not the 1152 bytes"),
    (PLANES | {"state_content_bytes": 256}, {"name": "rocm_planes"}, "256 bytes is not the 128"),
    ({"state_content_bytes": 136}, {"name": "cpu"}, "136 bytes is not the 128 bytes"),
    (PLANES | {"num_head_slots": 1}, {"name": "rocm_planes"}, "planes need two slots"),
    (
        PLANES | {"head_size": 12, "state_content_bytes": 48},
        {"name": "rocm_planes"},
        "a multiple of 8 elements",
    ),
]


@pytest.mark.parametrize(("fields", "interior", "message"), CONTRADICTIONS)
def test_bytes_that_do_not_come_to_the_format_contradict(
    fields: dict[str, Any], interior: dict[str, Any], message: str
) -> None:
    with pytest.raises(Contradiction, match=message):
        group(FULL | fields, **interior)


PACKED = FULL | {"dtype": "uint8"}
NVFP4 = PACKED | {"kv_quant_mode": "NVFP4", "num_head_slots": 4, "state_content_bytes": 18}
TURBO = PACKED | {"kv_quant_mode": "TURBOQUANT_4BIT_NC", "state_content_bytes": 38}
V4 = LATENT | {
    "head_size": 512,
    "dtype": "uint8",
    "model_version": "deepseek_v4",
    "cache_dtype_str": "fp8_ds_mla",
    "kv_quant_mode": "FP8_PER_TENSOR",
}
INT4 = PACKED | {"kv_quant_mode": "INT4_PER_TOKEN_HEAD", "state_content_bytes": 40}
UNFIT: list[tuple[dict[str, Any], str, dict[str, Any], str]] = [
    (NVFP4, "LBNHC", {"name": "nvfp4_linear"}, "NVFP4 pages need a slot in one piece"),
    (NVFP4, "LHBNC", {"name": "nvfp4_msa"}, "NVFP4 pages need a slot in one piece"),
    (NVFP4 | {"num_head_slots": 2}, "LBHNC", {"name": "nvfp4_msa"}, "two slots for each head"),
    (NVFP4 | {"head_size": 24}, "LBHNC", {"name": "nvfp4_msa"}, "24 elements are no groups of 16"),
    (NVFP4 | {"dtype": "int8"}, "LBHNC", {"name": "nvfp4_msa"}, "expected u8 elements, got i8"),
    (NVFP4 | {"block_size": 6}, "LBHNC", {"name": "nvfp4_trtllm_gen"}, "6 states are no tiles"),
    (PLANES | {"block_size": 12}, "LBHNC", {"name": "aiter_tiles"}, "12 states are no rows of 8"),
    (FULL, "LBHNC", {"name": "planes"}, "planes need two slots"),
    (TURBO, "LBNHC", {}, r"interior\.tables: .* nobody says which"),
    (TURBO, "LBHNC", {"name": "turboquant_regions", "tables": "t"}, "heads inside of tokens"),
    (TURBO | {"state_content_bytes": 40}, "LBNHC", {"tables": "t"}, "40 bytes is not the 38"),
    (INT4, "LBHNC", {}, r"interior\.rotation: .* nobody says which"),
    (INT4 | {"head_size_v": 16}, "LBHNC", {"rotation": "r"}, "K and V of different sizes"),
    (INT4 | {"head_size": 33}, "LBHNC", {"rotation": "r"}, "33 elements are no groups of 2"),
    (V4 | {"state_content_bytes": 600}, "LBHNC", {}, "600 bytes are none of 584, 528, 288"),
    (V4 | {"state_content_bytes": 584}, "LBHNC", {"kv_lora_rank": 512}, "has 448 and 64 elements"),
    (LATENT | {"kv_quant_mode": "NVFP4_DS_MLA"}, "LBHNC", {}, "NVFP4_DS_MLA of ''"),
]


@pytest.mark.parametrize(("spec", "layout", "interior", "message"), UNFIT)
def test_a_packed_page_that_does_not_fit_is_refused(
    spec: dict[str, Any], layout: str, interior: dict[str, Any], message: str
) -> None:
    with pytest.raises(DescriptorError, match=message):
        group(spec, layout, **interior)


@pytest.mark.parametrize("kernel", [8, 16])
def test_regions_are_each_kernel_blocks_own(kernel: int) -> None:
    found = group(NVFP4, name="nvfp4_trtllm_gen", kernel_block_size=kernel)
    n, page = 13, (1 * 5 + 4) * 4 * 16 * 18
    side = n // kernel * kernel * 4 * 18 + page + 2 * kernel * 18
    place = {"layer": 1, "block": 4, "H": 1, "N": n}
    at = n % kernel
    assert byte_of(found, "v", **place, D=2) == side + (kernel + at) * 16 + 1
    scales = side + 2 * kernel * 16 + 1 * kernel * 2
    assert byte_of(found, "v_group_scale", **place, G=1) == scales + at // 4 * 8 + 4 + at % 4


@pytest.mark.parametrize("kernel", [8, 16])
def test_tiles_are_each_kernel_blocks_own(kernel: int) -> None:
    found = group(PLANES, name="aiter_tiles", kernel_block_size=kernel)
    n, page = 13, (1 * 5 + 4) * 2 * 16 * 128
    plane = kernel * 128
    start = page + n // kernel * 2 * plane + plane + kernel * 64
    at = n % kernel
    place = {"layer": 1, "block": 4, "H": 1, "N": n, "D": 19}
    assert byte_of(found, "v", **place) == start + (at // 8 * 32 * 8 + 19 * 8 + at % 8) * 2


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "LHBNC"])
def test_plain_planes_follow_the_layout(layout: str) -> None:
    found = group(PLANES, layout, name="planes")
    where = strides(read_spec(PLANES), layout, 3, 5)
    start = 1 * where.layer + 4 * where.block + where.slot + 7 * where.state
    place = {"layer": 1, "block": 4, "H": 1, "N": 7, "D": 19}
    assert byte_of(found, "v", **place) == start + (32 + 19) * 2


def test_nvfp4_carries_its_layers_scales() -> None:
    found = group(NVFP4, name="nvfp4_linear")
    assert found.codec.id == "block_scaled"
    assert found.codec.params["scales.v"] == ["f32:40000000", "f32:40400000", "f32:40800000"]
    with pytest.raises(Contradiction, match="no scales for"):
        vllm.group_of(NVFP4, "LBHNC", PLACED, facts=FACTS, interior=Interior("nvfp4_linear"))


@pytest.mark.parametrize(("layers", "step"), [(1, 0), (2, 5 * 4096)])
def test_one_layer_has_no_step_to_the_next(layers: int, step: int) -> None:
    found = group(FULL, placed=vllm.Placed(NAMES[:layers], 5))
    assert found.places[0].layer_stride == step


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("model.layers.12.self_attn.attn", 12),
        ("3.attn", 3),
        ("language_model.model.layers.0.attn", 0),
    ],
)
def test_a_layers_number_is_in_its_name(name: str, number: int) -> None:
    assert vllm.layer_number(name, {}) == number


@pytest.mark.parametrize(("name", "count"), [("model.attn", 0), ("a.1.b.2", 2), ("a.٣.b", 0)])
def test_a_name_without_one_number_has_to_be_explained(name: str, count: int) -> None:
    with pytest.raises(UnknownPart, match=f"has {count} numbers, not one"):
        vllm.layer_number(name, {})
    assert vllm.layer_number(name, {name: 7}) == 7
