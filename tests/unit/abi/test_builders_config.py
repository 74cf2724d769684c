"""Whole configurations of vLLM, against the views that its workers got of them."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from support.abi_addresses import bit_of, byte_of, holder
from transload_abi.builders import Interior, vllm
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.errors import Contradiction, DescriptorError
from transload_abi.types import Descriptor, Group, Model, Producer, Rope

RECORDED = Path(__file__).parents[2] / "protocol/vectors/abi/vllm-0.32.0/specs.json"
CONFIGS: list[dict[str, Any]] = json.loads(RECORDED.read_text())["configs"]
MODEL = Model(name="tiny", num_layers=8, rope=Rope(state="applied"))
FACTS = vllm.Facts(model=MODEL)

MIXED_UP = [("states", "LHBNC")]
"""vLLM lays a group's block over two blocks of another: the id of neither would own its bytes."""


ROWS = ("rows", "on-the-host")
"""Of latents and of what is beside them: their elements are looked for by tests of their own."""


def name_of(case: dict[str, Any]) -> str:
    return f"{case['name']}-{case['config']['kv_cache_layout']}-{case['kernel_block_size']}"


def is_mixed_up(case: dict[str, Any]) -> bool:
    return (case["name"], case["config"]["kv_cache_layout"]) in MIXED_UP


SOUND = [
    pytest.param(case, id=name_of(case))
    for case in CONFIGS
    if not is_mixed_up(case) and case["name"] not in ROWS
]


def recorded(name: str, layout: str = "LBHNC") -> dict[str, Any]:
    """A configuration of its own, free to be changed."""
    found = next(c for c in CONFIGS if name_of(c) == f"{name}-{layout}-0")
    config: dict[str, Any] = json.loads(json.dumps(found["config"]))
    return config


def built(case: dict[str, Any]) -> Descriptor:
    interior = Interior(kernel_block_size=case["kernel_block_size"])
    return vllm.descriptor(case["config"], facts=FACTS, interior=interior)


def spec_of(config: dict[str, Any], layer: str) -> dict[str, Any]:
    group = next(g for g in config["kv_cache_groups"] if layer in g["layer_names"])
    spec: dict[str, Any] = group["kv_cache_spec"]
    return spec.get("kv_cache_specs", {}).get(layer, spec)  # type: ignore[no-any-return]


def test_the_recording_has_what_is_asked_of_it() -> None:
    names = {case["name"] for case in CONFIGS}
    assert names == {
        *("alike", "windows", "windows-odd", "chunks", "two-sizes", "states", "aligned"),
        *ROWS,
    }
    assert sum(case["kernel_block_size"] > 0 for case in CONFIGS) == 2


@pytest.mark.parametrize("case", SOUND)
def test_every_element_is_where_the_workers_view_has_it(case: dict[str, Any]) -> None:
    found = built(case)
    for layer, (offset, shape, strides) in case["views"].items():
        group, position = holder(found, vllm.layer_number(layer, {}))
        spec = spec_of(case["config"], layer)
        ratio = shape[0] // case["config"]["num_blocks"]
        first, second = (role.role for role in group.roles)
        for cell in product(
            *(sorted({0, 1, extent - 1} & set(range(extent))) for extent in shape[:3])
        ):
            block, head, state = cell
            address = offset + sum(index * step for index, step in zip(cell, strides, strict=False))
            place = {
                "layer": position,
                "block": block // ratio,
                "H": head,
                "N": block % ratio * shape[2] + state,
            }
            assert byte_of(group, first, **place) == address
            start = spec["head_size"] * 2 if "head_size" in spec else 96
            assert byte_of(group, second, **place, D=3) == address + start + 3 * size(group, second)


def size(group: Group, name: str) -> int:
    role = group.role(name)
    assert role is not None
    return role.bits // 8


@pytest.mark.parametrize("case", SOUND)
def test_what_is_built_is_checked_and_canonical(case: dict[str, Any]) -> None:
    found = built(case)
    check(found)
    assert canonical(found) == found
    assert found.pools[0].num_bytes == case["config"]["kv_cache_tensors"][0]["size"]
    assert found.producer == Producer(engine="vllm", layout=case["config"]["kv_cache_layout"])


@pytest.mark.parametrize("case", [case for case in CONFIGS if is_mixed_up(case)], ids=name_of)
def test_groups_whose_blocks_straddle_each_other_are_refused(case: dict[str, Any]) -> None:
    with pytest.raises(Contradiction, match="block_stride"):
        built(case)


@pytest.mark.parametrize(
    ("name", "tables"),
    [
        ("alike", [("full", 0, (0, 1, 2, 3))]),
        ("windows", [("sliding_window", 0, (0, 2, 4)), ("full", 1, (1, 3, 5))]),
        ("chunks", [("chunked_local", 0, (0, 2)), ("full", 1, (1, 3))]),
        ("two-sizes", [("full", 0, (0, 2)), ("full", 0, (1, 3, 4))]),
        ("states", [("recurrent", 0, (0, 2)), ("full", 1, (1, 3))]),
    ],
)
def test_a_cache_group_is_a_table(
    name: str, tables: list[tuple[str, int, tuple[int, ...]]]
) -> None:
    found = vllm.descriptor(recorded(name), facts=FACTS)
    assert [(g.kind, g.table, g.layers) for g in found.groups] == tables


def test_groups_of_two_tables_overlay_the_same_bytes() -> None:
    found = vllm.descriptor(recorded("windows", "BLHNC"), facts=FACTS)
    window, full = found.groups
    one = bit_of(window, "k", layer=1, block=3, H=1, N=5)
    assert one == bit_of(full, "k", layer=1, block=3, H=1, N=5)
    assert (window.window, full.window) == (64, 0)


def test_specifications_of_one_table_have_names_of_their_own() -> None:
    found = vllm.descriptor(recorded("two-sizes", "BLHNC"), facts=FACTS)
    assert [g.id for g in found.groups] == ["full.0.0", "full.0.1"]
    assert [g.places[0].page_bytes for g in found.groups] == [2048, 4096]
    assert found.pools[0].block_bytes == 16384


def test_pads_belong_to_pages_where_layers_are_outermost() -> None:
    by_layer = vllm.descriptor(recorded("aligned", "LBHNC"), facts=FACTS)
    assert (by_layer.groups[0].places[0].page_bytes, by_layer.pools[0].block_bytes) == (3072, 0)
    by_block = vllm.descriptor(recorded("aligned", "BLHNC"), facts=FACTS)
    assert (by_block.groups[0].places[0].page_bytes, by_block.pools[0].block_bytes) == (2048, 6144)


def test_each_group_may_have_an_interior_of_its_own() -> None:
    interiors = [Interior(name="cpu"), Interior()]
    window, full = vllm.descriptor(recorded("windows"), facts=FACTS, interior=interiors).groups
    assert byte_of(window, "k", layer=0, block=0, D=1) == 32
    assert byte_of(full, "k", layer=0, block=0, D=1) == 2
    with pytest.raises(Contradiction, match="2 interiors for 1 groups"):
        vllm.descriptor(recorded("alike"), facts=FACTS, interior=interiors)


def test_the_layout_may_be_told_apart_from_the_configuration() -> None:
    config = recorded("alike") | {"kv_cache_layout": None}
    told = vllm.descriptor(config, facts=FACTS, layout="LBHNC")
    assert told == vllm.descriptor(recorded("alike"), facts=FACTS)
    with pytest.raises(Contradiction, match="kv_cache_layout: no layout"):
        vllm.descriptor(config, facts=FACTS)


def test_a_group_that_the_engine_rebuilds_is_not_transferable() -> None:
    config = recorded("windows")
    config["kv_cache_groups"][1]["enable_kv_transfer"] = False
    found = vllm.descriptor(config, facts=FACTS)
    assert [g.transferable for g in found.groups] == [True, False]


@pytest.mark.parametrize(("is_shared", "memory"), [(False, "host"), (True, "shared")])
def test_a_group_on_the_host_has_a_pool_there(is_shared: bool, memory: str) -> None:
    config = recorded("windows") | {
        "hisparse_host_num_blocks": 3,
        "hisparse_shared_host_pool": is_shared,
    }
    config["kv_cache_groups"][1]["host_resident"] = True
    host = {"host_resident": True, "size": 3 * 6144, "layer_stride": 6144}
    config["kv_cache_tensors"][1] |= host
    found = vllm.descriptor(config, facts=vllm.Facts(model=MODEL, align=64))
    assert [(p.id, p.memory, p.num_blocks, p.num_bytes, p.align) for p in found.pools] == [
        ("host", memory, 3, 18432, 64),
        ("kv", "device", 7, 43008, 64),
    ]
    assert [g.places[0].pools for g in found.groups] == [("kv",), ("host",)]
    with pytest.raises(Contradiction, match="hisparse_host_num_blocks"):
        vllm.descriptor(config | {"hisparse_host_num_blocks": None}, facts=FACTS)


def test_a_layer_that_reads_anothers_cache_needs_no_memory() -> None:
    config = recorded("alike")
    config["kv_cache_groups"][0]["layer_names"].append("model.layers.7.self_attn.attn")
    with pytest.raises(Contradiction, match="is in 0 tensors, not in one"):
        vllm.descriptor(config, facts=FACTS)
    model = Model(name="m", num_layers=8, rope=Rope(state="applied"), kv_share=((7, 3),))
    found = vllm.descriptor(config, facts=vllm.Facts(model=model))
    assert found.groups[0].layers == (0, 1, 2, 3)


def test_layers_are_numbered_by_the_caller_where_names_do_not_tell() -> None:
    config = json.loads(json.dumps(recorded("alike")).replace("self_attn.attn", "attn.0"))
    numbers = {f"model.layers.{number}.attn.0": number + 4 for number in range(4)}
    found = vllm.descriptor(config, facts=vllm.Facts(model=MODEL, layer_numbers=numbers))
    assert found.groups[0].layers == (4, 5, 6, 7)


def drop_layer(config: dict[str, Any]) -> None:
    config["kv_cache_tensors"][0]["layers"].pop()


def stranger(config: dict[str, Any]) -> None:
    config["kv_cache_tensors"][0]["layers"][0] = "model.layers.7.attn"


def twice(config: dict[str, Any]) -> None:
    config["kv_cache_tensors"].append(config["kv_cache_tensors"][0])


def no_layers(config: dict[str, Any]) -> None:
    config["kv_cache_tensors"][0]["layers"] = []


def two_groups(config: dict[str, Any]) -> None:
    first, second = config["kv_cache_groups"]
    second["layer_names"].append(first["layer_names"][0])


def across_groups(config: dict[str, Any]) -> None:
    first, second = config["kv_cache_tensors"]
    first["layers"].append(second["layers"].pop())


def two_sizes(config: dict[str, Any]) -> None:
    config["kv_cache_tensors"][1]["size"] += 1


def too_small(config: dict[str, Any]) -> None:
    for tensor in config["kv_cache_tensors"]:
        tensor["size"] -= 1


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (drop_layer, "is in 0 tensors, not in one"),
        (stranger, r"kv_cache_tensors\[0\]\.layers: 'model\.layers\.7\.attn' is in no group"),
        (twice, "is in 2 tensors, not in one"),
        (no_layers, r"kv_cache_tensors\[0\]\.layers: no layers"),
        (two_groups, r"kv_cache_groups\[1\]\.layer_names: .* is in group 0 as well"),
        (across_groups, "layers of several groups or specifications"),
        (two_sizes, "size: one pool of 43008 and of 43009 bytes"),
        (too_small, "pool"),
    ],
)
def test_a_configuration_that_contradicts_itself_is_refused(change: Any, message: str) -> None:
    config = recorded("windows")
    change(config)
    with pytest.raises(DescriptorError, match=message):
        vllm.descriptor(config, facts=FACTS)


# --- rows of latents, and what is beside them


def beside(case: dict[str, Any]) -> dict[str, Interior]:
    """By layer, as a caller that knows the model says."""
    return {layer: interior_of(layer) for layer in case["views"]}


def interior_of(layer: str) -> Interior:
    if "indexer" in layer:
        return Interior(name="indexer")
    return Interior(name="compressor") if "compressor" in layer else Interior()


def of_rows(name: str) -> dict[str, Any]:
    return next(case for case in CONFIGS if case["name"] == name)


@pytest.mark.parametrize("name", ROWS)
def test_rows_of_several_sorts_are_where_the_workers_views_are(name: str) -> None:
    case = of_rows(name)
    found = vllm.descriptor(case["config"], facts=FACTS, interior=beside(case))
    firsts = {"indexer": "index_k", "compressor": "state_kv"}
    for layer, (offset, shape, strides) in case["views"].items():
        role = next((firsts[part] for part in layer.split(".") if part in firsts), "latent")
        is_window = "swa_cache" in layer
        number = vllm.layer_number(layer, {})
        group = next(
            g
            for g in found.groups
            if g.role(role) and number in g.layers and is_window == (g.kind == "sliding_window_mla")
        )
        for block in (0, shape[0] - 1):
            place = {"layer": group.layers.index(number), "block": block}
            assert byte_of(group, role, **place) == offset + block * strides[0]
        assert group.roles[0].shape["N"] == shape[2]


def test_one_cache_group_may_hold_latents_and_their_indexers() -> None:
    case = of_rows("rows")
    found = vllm.descriptor(case["config"], facts=FACTS, interior=beside(case))
    assert [(g.id, g.kind, g.window, g.codec.id) for g in found.groups] == [
        ("full.0", "full", 0, "block_scaled"),
        ("mla.0", "mla", 0, "block_scaled"),
        ("sliding_window_mla.1", "sliding_window_mla", 128, "block_scaled"),
        ("sliding_window.2", "sliding_window", 8, "none"),
    ]
    assert [g.places[0].page_bytes for g in found.groups] == [8640, 37440, 37440, 32832]
    assert found.pools[0].block_bytes == 92160


def test_interiors_by_layer_are_due_for_each_and_agree_in_a_tensor() -> None:
    case = of_rows("rows")
    each = beside(case)
    lacking = {name: each[name] for name in list(each)[1:]}
    with pytest.raises(Contradiction, match=r"interior: no interior for 'model\.layers\.0\.attn'"):
        vllm.descriptor(case["config"], facts=FACTS, interior=lacking)
    other = each | {"model.layers.1.attn": Interior(float8="e4m3fnuz")}
    with pytest.raises(Contradiction, match=r"tensors\[0\]\.layers: layers of several interiors"):
        vllm.descriptor(case["config"], facts=FACTS, interior=other)


def test_what_the_device_keeps_of_a_cache_on_the_host_is_left_out() -> None:
    case = of_rows("on-the-host")
    found = vllm.descriptor(case["config"], facts=FACTS, interior=beside(case))
    assert [(g.id, g.table, g.transferable, g.places[0].pools) for g in found.groups] == [
        ("mla.0", 0, True, ("host",)),
        ("full.1", 1, True, ("kv",)),
    ]
    pools = {pool.id: pool for pool in found.pools}
    assert {name: (p.memory, p.num_bytes, p.block_bytes) for name, p in pools.items()} == {
        "host": ("host", 1032192, 0),
        "kv": ("device", 516096, 73728),
    }
    assert found.groups[0].places[0].layer_stride == 516096
