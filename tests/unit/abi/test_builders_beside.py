"""vLLM's caches beside keys and values: indexers, compressors, rings, states, pages of bytes."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.abi_addresses import byte_of
from transload_abi import fingerprints, oracle
from transload_abi.builders import Interior, Rank, StatePart, vllm
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.errors import Contradiction, DescriptorError, LimitExceeded, UnknownPart
from transload_abi.types import Descriptor, Group, Model, Owner, Rope

VECTORS = Path(__file__).parents[2] / "vectors/abi/decode"
MODEL = Model(name="tiny", num_layers=64, rope=Rope(state="applied"))
NAMES = ("model.layers.0.attn", "model.layers.1.attn")
PLACED = vllm.Placed(NAMES, 3)

ROW: dict[str, Any] = {
    "class": "MLAAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 1,
    "head_size": 128,
    "dtype": "bfloat16",
}
RING = ROW | {"class": "CircularBufferSpec", "block_size": 8, "head_size_v": 0}
WINDOW = ROW | {"class": "SlidingWindowMLASpec", "sliding_window": 8, "dtype": "float32"}
FULL = ROW | {"class": "FullAttentionSpec", "num_kv_heads": 2, "head_size": 32}


def groups(
    spec: dict[str, Any], layout: str = "LBHNC", rank: Rank | None = None, **interior: Any
) -> tuple[Group, ...]:
    facts = vllm.Facts(model=MODEL, rank=rank or Rank())
    return vllm.groups_of(spec, layout, PLACED, facts=facts, interior=Interior(**interior))


def group(spec: dict[str, Any], layout: str = "LBHNC", **interior: Any) -> Group:
    (found,) = groups(spec, layout, **interior)
    return found


# --- indexers, compressors, rings


def test_a_quantised_indexers_scales_are_behind_all_keys_of_a_kernel_block() -> None:
    spec = ROW | {"head_size": 132, "dtype": "uint8", "cache_role": "INDEXER"}
    found = group(spec, kernel_block_size=8, float8="e4m3fnuz")
    place = {"layer": 1, "block": 2, "N": 11}
    half = (1 * 3 + 2) * 16 * 132 + 8 * 132
    assert byte_of(found, "index_k", **place, D=5) == half + 3 * 128 + 5
    assert byte_of(found, "index_k_scale", **place) == half + 8 * 128 + 3 * 4
    assert {role.dtype for role in found.roles} == {"e4m3fnuz", "f32"}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"dtype": "uint8", "head_size": 100}, "index keys of 100 bytes in u8"),
        ({"dtype": "float8_e4m3fn"}, "index keys of 128 bytes in e4m3"),
        ({"num_head_slots": 2}, "in 2 slots"),
        ({"kv_quant_mode": "FP8_PER_TENSOR"}, "FP8_PER_TENSOR in indexer pages"),
        ({"state_content_bytes": 264}, "264 bytes is not the 256"),
    ],
)
def test_other_index_keys_are_refused_by_name(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(DescriptorError, match=message):
        group(ROW | fields, name="indexer")


@pytest.mark.parametrize(
    ("name", "roles"),
    [
        ("compressor", ("state_kv", "state_score")),
        ("index_compressor", ("index_state_kv", "index_state_score")),
    ],
)
def test_a_compressors_scores_are_the_second_half_of_a_row(name: str, roles: Any) -> None:
    found = group(WINDOW, name=name)
    assert (found.kind, found.window) == ("sliding_window", 8)
    assert tuple(role.role for role in found.roles) == roles
    place = {"layer": 1, "block": 2, "N": 3, "D": 5}
    row = ((1 * 3 + 2) * 16 + 3) * 512
    assert byte_of(found, roles[0], **place) == row + 20
    assert byte_of(found, roles[1], **place) == row + 256 + 20


@pytest.mark.parametrize("layout", ["LBHNC", "LBNHC", "LHBNC"])
def test_a_tails_scores_are_its_second_slot(layout: str) -> None:
    spec = RING | {"num_kv_heads": 2, "dcp_sharded": False}
    found = group(spec, layout, name="index_compressor")
    assert (found.kind, found.window, found.owner) == ("ring", 8, Owner())
    where = strides(read_spec(spec), layout, 2, 3)
    for slot, role in enumerate(("index_state_kv", "index_state_score")):
        start = 1 * where.layer + 2 * where.block + slot * where.slot + 3 * where.state
        assert byte_of(found, role, layer=1, block=2, N=3, D=7) == start + 14


def test_a_ring_of_keys_may_have_positions() -> None:
    found = group(RING | {"head_size": 44}, name="key_ring", position_elements=30)
    assert [(r.role, r.dtype, r.shape["D"], r.base_bits) for r in found.roles] == [
        ("index_k", "bf16", 30, 0),
        ("position", "i64", 3, 32 * 16),
    ]
    alone = group(RING, name="key_ring")
    assert [(r.role, r.shape["D"]) for r in alone.roles] == [("index_k", 128)]


@pytest.mark.parametrize(
    ("fields", "interior", "message"),
    [
        ({}, {}, "a ring in packed pages"),
        ({"dtype": "uint8"}, {"name": "key_ring"}, "u8 rows"),
        ({"head_size": 45}, {"name": "key_ring", "position_elements": 30}, "30 elements and three"),
        (
            {"dtype": "float32", "head_size": 44},
            {"name": "key_ring", "position_elements": 32},
            "not 44 of 32 bits",
        ),
        ({"head_size": 127}, {"name": "compressor"}, "127 elements are no two halves"),
        ({"head_size_v": 128}, {"name": "compressor"}, "have no values"),
        ({"num_head_slots": 3}, {"name": "compressor"}, "in 3 slots"),
    ],
)
def test_other_rings_are_refused_by_name(
    fields: dict[str, Any], interior: dict[str, Any], message: str
) -> None:
    with pytest.raises(DescriptorError, match=message):
        group(RING | fields, **interior)


# --- states

GDN: dict[str, Any] = {
    "class": "MambaSpec",
    "block_size": 16,
    "shapes": [[3, 48], [4, 4, 8]],
    "dtypes": ["bfloat16", "float32"],
    "mamba_type": "GDN",
}
GDN_PARTS = (
    StatePart("conv_q", 2, 8),
    StatePart("conv_k", 2, 8),
    StatePart("conv_v", 4, 4),
    StatePart("ssm_h", 4),
)
MAMBA_PARTS = (
    StatePart("conv_x", 4, 4),
    StatePart("conv_b", 2, 8),
    StatePart("conv_c", 2, 8),
    StatePart("ssm_h", 4),
)
KDA = GDN | {"shapes": [[3, 60], [3, 4, 8]]}
KDA_PARTS = (
    StatePart("conv_q", 3, 8),
    StatePart("conv_k", 3, 8),
    StatePart("conv_v", 3, 4),
    StatePart("ssm_h", 3),
)
BY_HEAD = [
    ("gdn-by-head", GDN, GDN_PARTS),
    ("mamba-by-head", GDN, MAMBA_PARTS),
    ("kda-by-head", KDA, KDA_PARTS),
]


def described(spec: dict[str, Any], layout: str, **interior: Any) -> Descriptor:
    dense = strides(read_spec(spec), layout, 2, 3)
    tensor = {
        "size": 2 * 3 * read_spec(spec).page_bytes,
        "layers": NAMES,
        "layer_stride": dense.layer,
        "block_stride": dense.block,
    }
    config = {
        "num_blocks": 3,
        "kv_cache_tensors": [tensor],
        "kv_cache_groups": [{"layer_names": NAMES, "kv_cache_spec": spec}],
    }
    facts = vllm.Facts(model=MODEL)
    return vllm.descriptor(config, facts=facts, interior=Interior(**interior), layout=layout)


@pytest.mark.parametrize(("name", "spec", "parts"), BY_HEAD)
def test_states_by_head_are_the_vectors(name: str, spec: dict[str, Any], parts: Any) -> None:
    layout = "BLHNC" if name == "kda-by-head" else "LBHNC"
    found = described(spec, layout, state_parts=parts)
    case = json.loads((VECTORS / name / "case.json").read_text())
    assert fingerprints.of_descriptor(found).page == case["fingerprints"]["page"]
    due = json.loads((VECTORS / name / "descriptor.json").read_text())["groups"]
    assert sorted((g.places[0].offset, g.owner.heads) for g in found.groups) == sorted(
        (g["places"][0].get("offset", 0), tuple(g["owner"]["heads"])) for g in due
    )


@pytest.mark.parametrize("order", ["SD", "DS"])
def test_flattened_states_count_columns_of_a_channel_first(order: Any) -> None:
    shape = [3, 48] if order == "SD" else [48, 3]
    d = described(GDN | {"shapes": [shape, [4, 4, 8]]}, "LBHNC", conv_order=order)
    pages = np.arange(2 * 3 * 400, dtype=np.uint16).reshape(2, 3, 400)
    memory = {"kv": pages.reshape(-1).view(np.uint8)}
    conv = pages[..., :144].reshape(2, 3, *shape)
    due = conv.swapaxes(2, 3) if order == "SD" else conv
    found = oracle.read_elements(d, memory, "recurrent.0", "conv", range(3))
    np.testing.assert_array_equal(found.reshape(2, 3, 48, 3), due)
    ssm = oracle.read_elements(d, memory, "recurrent.0", "ssm", range(3))
    np.testing.assert_array_equal(ssm[:, :, 0], pages[..., 144:].copy().view("<u4"))


@pytest.mark.parametrize("order", ["SD", "DS"])
def test_parts_by_head_are_channels_of_the_convolution(order: Any) -> None:
    shape = [3, 48] if order == "SD" else [48, 3]
    spec = GDN | {"shapes": [shape, [4, 4, 8]]}
    d = described(spec, "LBHNC", conv_order=order, state_parts=GDN_PARTS)
    pages = np.arange(2 * 3 * 400, dtype=np.uint16).reshape(2, 3, 400)
    memory = {"kv": pages.reshape(-1).view(np.uint8)}
    conv = pages[..., :144].reshape(2, 3, *shape)
    by_channel = conv.swapaxes(2, 3) if order == "SD" else conv
    for role, start, heads, size in (("conv_k", 16, 2, 8), ("conv_v", 32, 4, 4)):
        holder = next(g.id for g in d.groups if g.role(role))
        found = oracle.read_elements(d, memory, holder, role, range(3))
        due = by_channel[:, :, start : start + heads * size].reshape(2, 3, heads, 1, 3 * size)
        np.testing.assert_array_equal(found, due)


def test_a_state_of_one_tensor_has_heads_or_is_refused() -> None:
    linear = GDN | {"shapes": [[4, 8, 8]], "dtypes": ["float32"], "mamba_type": "LINEAR"}
    found = group(linear, state_parts=(StatePart("ssm_h", 4),))
    assert [(r.role, r.shape, r.base_bits) for r in found.roles] == [
        ("ssm_h", {"H": 4, "N": 1, "D": 64}, 0)
    ]
    with pytest.raises(UnknownPart, match="1 states of LINEAR, not two"):
        group(linear)
    short = GDN | {"shapes": [[3, 48]], "dtypes": ["bfloat16"]}
    alone = group(short, state_parts=(StatePart("conv_x", 48, 1),))
    assert [(r.role, r.shape) for r in alone.roles] == [("conv_x", {"H": 48, "N": 1, "D": 3})]


@pytest.mark.parametrize(
    ("fields", "parts", "message"),
    [
        ({}, GDN_PARTS[:2], "2 states of other parts"),
        ({}, (*GDN_PARTS, StatePart("ssm_h", 2)), "2 states of other parts"),
        ({}, GDN_PARTS[1:], "parts of 32 channels are not the state's 48"),
        ({}, (StatePart("conv_q", 3, 16), StatePart("conv_x", 2, 0), *GDN_PARTS[3:]), "channels"),
        ({}, (*GDN_PARTS[:3], StatePart("ssm_h", 5)), "5 heads do not divide 128 elements"),
        ({"shapes": [[3, 4, 4], [4, 4, 8]]}, (), "a convolution's state of 3 axes"),
        ({"dtypes": ["bfloat16", "int8"]}, GDN_PARTS, "i8 states"),
    ],
)
def test_parts_that_are_not_the_states_are_refused(
    fields: dict[str, Any], parts: Any, message: str
) -> None:
    with pytest.raises(DescriptorError, match=message):
        groups(GDN | fields, state_parts=parts)


def test_several_groups_are_not_one() -> None:
    facts = vllm.Facts(model=MODEL)
    with pytest.raises(Contradiction, match="2 groups, not one"):
        vllm.group_of(GDN, "LBHNC", PLACED, facts=facts, interior=Interior(state_parts=GDN_PARTS))


@pytest.mark.parametrize(
    ("rank", "heads", "of_groups"),
    [(0, (0, 4, 16), (0, 2, 2)), (1, (4, 8, 16), (0, 2, 2)), (2, (8, 12, 16), (0, 2, 2))],
)
def test_ranks_split_states_by_head(rank: int, heads: Any, of_groups: Any) -> None:
    parts = [part._replace(total_heads=2) if part.heads == 2 else part for part in MAMBA_PARTS]
    place = Rank(tp_rank=rank, tp_size=4)
    with pytest.raises(Contradiction, match="a rank of 4 has 2 of 2 heads"):
        groups(GDN, rank=place, state_parts=tuple(parts))
    one = [part._replace(heads=1, channels=16) if part.heads == 2 else part for part in parts]
    found = groups(GDN, rank=place, state_parts=tuple(one))
    assert [g.owner for g in found] == [
        Owner(heads=heads),
        Owner(heads=(rank // 2, rank // 2 + 1, 2), replica=(rank % 2, 2)),
    ]
    whole = groups(GDN | {"tp_replicated": True}, rank=place, state_parts=tuple(MAMBA_PARTS))
    assert whole[1].owner == Owner(heads=of_groups, replica=(rank, 4))


# --- bytes


def test_a_page_that_nobody_describes_is_bytes() -> None:
    d = described(FULL, "BLHNC", name="page", opaque="engine 1.0, backend X")
    (found,) = d.groups
    assert (found.codec.id, found.opaque, found.kind) == ("opaque", "engine 1.0, backend X", "full")
    assert [(r.role, r.shape) for r in found.roles] == [("page", {"D": 2 * 16 * 128})]


@pytest.mark.parametrize(
    ("spec", "kind"),
    [(ROW, "mla"), (WINDOW, "sliding_window_mla"), (RING, "ring")],
)
def test_every_rank_holds_all_of_a_page_without_heads(spec: dict[str, Any], kind: str) -> None:
    rank = Rank(tp_rank=1, tp_size=2)
    (found,) = groups(spec, rank=rank, name="page", opaque="x")
    assert (found.kind, found.owner) == (kind, Owner(replica=(1, 2)))


def test_a_described_page_may_be_unproven() -> None:
    (found,) = described(FULL, "LBHNC", opaque="engine 1.0").groups
    assert (found.opaque, found.codec.id) == ("engine 1.0", "none")


def test_a_page_of_bytes_has_a_writer_and_is_in_one_piece() -> None:
    with pytest.raises(Contradiction, match="opaque: a page that nobody describes"):
        group(FULL, name="page")
    with pytest.raises(Contradiction, match="in one piece"):
        group(FULL, "LHBNC", name="page", opaque="x")
    with pytest.raises(LimitExceeded, match="a page of 4194304 bytes"):
        group(FULL | {"block_size": 16384}, name="page", opaque="x")


def test_turboquants_cells_are_of_two_bytes() -> None:
    spec = FULL | {"head_size": 8, "dtype": "uint8", "kv_quant_mode": "TURBOQUANT_K3V4_NC"}
    found = group(spec | {"state_content_bytes": 14}, "LBNHC", tables="t")
    last = {"layer": 0, "block": 1, "H": 1, "N": 2}
    assert byte_of(found, "v_zero", **last) == ((16 + 2) * 2 + 1) * 14 + 11
    with pytest.raises(DescriptorError, match="13 bytes is not the 14"):
        group(spec | {"state_content_bytes": 13}, "LBNHC", tables="t")
