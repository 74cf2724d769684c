"""The builder's descriptor of a running engine's cache, against that cache.

And the blocks that a served prompt filled, moved by the kernels to other placements and back.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from msgspec.structs import replace
from numpy.typing import NDArray

from engine.world import REQUEST_S
from real_engine.launch import MODEL_NAME, Engine, Engines, EngineSpec, Role
from support.abi_addresses import byte_of, holder
from support.abi_placements import PLACEMENTS, Shape
from support.abi_round_trips import carry, held
from transload_abi import oracle
from transload_abi.builders import Interior, vllm
from transload_abi.check import check
from transload_abi.plan import Blocks, Pair, Plan
from transload_abi.proof import prove
from transload_abi.types import Descriptor, Group, Model, Rope

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

NUM_BLOCKS, NUM_TOKENS = 64, 300

HYBRID = {
    "architectures": ["Gemma2ForCausalLM"],
    "model_type": "gemma2",
    "vocab_size": 2048,
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "query_pre_attn_scalar": 64,
    "sliding_window": 128,
    "max_position_embeddings": 4096,
    "attn_logit_softcapping": 50.0,
    "final_logit_softcapping": 30.0,
    "hidden_activation": "gelu_pytorch_tanh",
    "torch_dtype": "bfloat16",
}
"""Layers with a window and layers without take turns. The weights are whatever vLLM makes up."""


Kept = dict[str, Any]
"""What the observer writes of a layer: see `tools/real_engine/kv_observer.py`."""


class Observed(NamedTuple):
    """What an engine's connector wrote down.

    Attributes:
        config: `KVCacheConfig` in plain values.
        views: By layer name, in bytes.
        descriptor: What the builder makes of the configuration alone.
    """

    engine: Engine
    folder: Path
    config: dict[str, Any]
    views: dict[str, dict[str, Any]]
    descriptor: Descriptor


def started(engines: Engines, folder: Path, name: str, *arguments: str) -> Engine:
    transfer = {
        "kv_connector": "KvObserver",
        "kv_connector_module_path": "kv_observer",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"folder": str(folder)},
    }
    options = ("--kv-transfer-config", json.dumps(transfer), *arguments)
    return engines.start(
        EngineSpec(name, Role.AGGREGATED, num_blocks=NUM_BLOCKS, extra_args=options)
    )


def observed(engine: Engine, folder: Path) -> Observed:
    engine.wait_ready()
    found = json.loads((folder / "caches.json").read_text())
    views = found["views"]
    # A view's tokens are those of a kernel block: what the backend cuts blocks into.
    kernel = {view["shape"][2] for view in views.values()}
    facts = vllm.Facts(
        model=Model(
            name=MODEL_NAME, num_layers=4, rope=Rope(state="applied"), revision="of this test"
        ),
        memory="host",
    )
    interior = Interior(name="cpu", kernel_block_size=kernel.pop())
    d = vllm.descriptor(found["config"], facts=facts, interior=interior)
    return Observed(engine, folder, found["config"], views, d)


@pytest.fixture(scope="module")
def both(engines: Engines, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Observed]:
    """An engine whose layers are alike, and one with a window in every second layer."""
    folders = {name: tmp_path_factory.mktemp(name) for name in ("alike", "hybrid")}
    model = folders["hybrid"] / "model"
    shutil.copytree(engines.model, model, ignore=shutil.ignore_patterns("*.safetensors"))
    (model / "config.json").write_text(json.dumps(HYBRID))
    made_up = ("--model", str(model), "--load-format", "dummy", "--dtype", "bfloat16")
    running = {
        "alike": started(engines, folders["alike"], "kv-alike"),
        "hybrid": started(engines, folders["hybrid"], "kv-hybrid", *made_up),
    }
    return {name: observed(engine, folders[name]) for name, engine in running.items()}


@pytest.fixture(scope="module")
def prompts(both: dict[str, Observed]) -> dict[str, dict[str, Kept]]:
    """What each engine wrote for a prompt, by layer name."""
    return {name: served(cache) for name, cache in both.items()}


@pytest.fixture(params=["alike", "hybrid"])
def which(request: pytest.FixtureRequest) -> str:
    """The name of one of them."""
    return str(request.param)


@pytest.fixture
def cache(which: str, both: dict[str, Observed]) -> Observed:
    """One of them."""
    return both[which]


@pytest.fixture
def kept(which: str, prompts: dict[str, dict[str, Kept]]) -> dict[str, Kept]:
    """What it wrote."""
    return prompts[which]


def served(cache: Observed) -> dict[str, Kept]:
    prompt = [7 + 5 * number % 1900 for number in range(NUM_TOKENS)]
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{cache.engine.url}/v1/completions", json=body, timeout=REQUEST_S)
    answer.raise_for_status()
    return {name: json.loads((cache.folder / f"{name}.json").read_text()) for name in cache.views}


def test_the_engines_are_what_they_are_meant_to_be(both: dict[str, Observed]) -> None:
    kinds = {name: [g.kind for g in each.descriptor.groups] for name, each in both.items()}
    assert kinds == {"alike": ["full"], "hybrid": ["sliding_window", "full"]}
    window, full = both["hybrid"].descriptor.groups
    assert (window.window, full.window, window.table, full.table) == (128, 0, 0, 1)
    assert {role.dtype for role in full.roles} == {"bf16"}


def test_pages_are_where_the_workers_views_are(cache: Observed) -> None:
    memories = {view["memory"] for view in cache.views.values()}
    assert len(memories) == 1
    (pool,) = cache.descriptor.pools
    assert pool.num_bytes == next(iter(cache.views.values()))["memory_bytes"]
    assert len(cache.views) == 4
    for name, view in cache.views.items():
        group, layer = holder(cache.descriptor, vllm.layer_number(name, {}))
        blocks, heads, tokens, content = view["shape"]
        ratio = blocks // NUM_BLOCKS
        assert (heads, ratio * tokens) == (2, group.tokens_per_block)
        size = view["element_bytes"]
        assert content == 2 * 64
        for block in (0, 1, blocks - 1):
            for head in range(heads):
                start = view["offset"] + block * view["strides"][0] + head * view["strides"][1]
                first = block % ratio * tokens
                index = {"layer": layer, "block": block // ratio, "H": head, "N": first}
                assert byte_of(group, "k", **index) == start
                assert byte_of(group, "v", **index) == start + tokens * 64 * size
                last = index | {"N": first + tokens - 1, "D": 63}
                assert byte_of(group, "v", **last) + size == start + view["strides"][1]


def test_a_served_prompts_keys_and_values_are_found(cache: Observed, kept: dict[str, Kept]) -> None:
    memory = dumped(cache, kept)
    assert_found(cache, kept, cache.descriptor, memory, block_lists(cache, kept))
    for one in kept.values():
        for side in ("key", "value"):
            assert np.unique(np.frombuffer(bytes.fromhex(one[side]), "<f4")).size > 1000


BETWEEN = [
    pytest.param("LBNHC", 1, id="token by token"),
    pytest.param("BLHNC", 1, id="blocks of all layers"),
    pytest.param("rocm", 1, id="planes"),
    pytest.param("odd", 1, id="odd"),
    pytest.param("LBNHC", 8, id="an eighth of a block"),
]


@pytest.mark.parametrize(("place", "parts"), BETWEEN)
def test_a_served_prompts_blocks_come_back_from_another_placement(
    cache: Observed, kept: dict[str, Kept], place: str, parts: int
) -> None:
    """From the engine's memory and into memory as large: the prompt's bytes, and no others."""
    d, away = cache.descriptor, elsewhere(cache.descriptor, place, parts)
    ids = block_lists(cache, kept)
    tokens = {group.table: group.tokens_per_block for group in away.groups}
    others = {table: list(range(-(-NUM_TOKENS // size), 0, -1)) for table, size in tokens.items()}
    page, between, again = dumped(cache, kept), oracle.blank(away), oracle.blank(d)
    carry(planned(d, away, ids, others), page, between, "cpu")
    assert_found(cache, kept, away, between, others)
    carry(planned(away, d, others, ids), between, again, "cpu")

    mask = held(d, ids, NUM_TOKENS)["kv"]
    np.testing.assert_array_equal(again["kv"][mask], page["kv"][mask])
    # Of a last block's rest nothing is promised; all around the blocks is as it was.
    rest = ~held(d, ids, NUM_TOKENS + max(group.tokens_per_block for group in d.groups))["kv"]
    assert np.all(again["kv"][rest] == oracle.FILL)
    assert np.count_nonzero(mask) == sum(
        NUM_TOKENS * len(group.layers) * 2 * 2 * 64 * group.roles[0].bits // 8 for group in d.groups
    )


def elsewhere(d: Descriptor, place: str, parts: int) -> Descriptor:
    """The groups' values in a placement of `abi_placements`, in pools of each group's own."""
    pools, groups = [], []
    for group in d.groups:
        k = group.roles[0]
        shape = Shape(
            layers=len(group.layers),
            blocks=NUM_BLOCKS,
            heads=k.shape["H"],
            tokens=group.tokens_per_block // parts,
            size=k.shape["D"],
            dtype=k.dtype,
        )
        one = PLACEMENTS[place](shape)
        names = {pool.id: f"{group.id}/{pool.id}" for pool in one.pools}
        pools += [replace(pool, id=names[pool.id]) for pool in one.pools]
        laid = one.groups[0]
        places = tuple(
            replace(each, pools=tuple(names[pool] for pool in each.pools)) for each in laid.places
        )
        groups.append(
            replace(
                group,
                places=places,
                roles=laid.roles,
                tokens_per_block=laid.tokens_per_block,
                null_block=0,
            )
        )
    away = replace(d, pools=tuple(pools), groups=tuple(groups))
    check(away)
    return away


def planned(
    src: Descriptor, dst: Descriptor, src_ids: dict[int, list[int]], dst_ids: dict[int, list[int]]
) -> Plan:
    """The plan; proven where pieces are small, as a proof of whole blocks takes seconds."""
    blocks = Blocks(src_ids, dst_ids, NUM_TOKENS)
    plan = Pair.compile(src, dst).plan(blocks)
    if src.groups[0].tokens_per_block != dst.groups[0].tokens_per_block:
        prove(plan, src, dst, blocks)
    return plan


def block_lists(cache: Observed, kept: dict[str, Kept]) -> dict[int, list[int]]:
    """The prompt's blocks by table: which blocks its tokens were written to, in their order."""
    lists: dict[int, list[int]] = {}
    for name, one in kept.items():
        group, _ = holder(cache.descriptor, vllm.layer_number(name, {}))
        tokens = group.tokens_per_block
        ids = list(dict.fromkeys(slot // tokens for slot in one["slots"]))
        assert one["slots"] == [
            ids[token // tokens] * tokens + token % tokens for token in range(NUM_TOKENS)
        ]
        assert lists.setdefault(group.table, ids) == ids
    return lists


def dumped(cache: Observed, kept: dict[str, Kept]) -> oracle.Memory:
    """The engine's pool, as far as the prompt's blocks go; zeros around them."""
    memory = np.zeros(cache.descriptor.pools[0].num_bytes, np.uint8)
    for name, one in kept.items():
        view = cache.views[name]
        for block, content in one["blocks"].items():
            start = view["offset"] + int(block) * view["strides"][0]
            page = np.frombuffer(bytes.fromhex(content), np.uint8)
            memory[start : start + page.size] = page
    return {"kv": memory}


def assert_found(
    cache: Observed,
    kept: dict[str, Kept],
    d: Descriptor,
    memory: oracle.Memory,
    lists: dict[int, list[int]],
) -> None:
    """In blocks that `d` describes: the keys and values that each layer was given to write."""
    assert kept.keys() == cache.views.keys()
    for name, one in kept.items():
        assert one["shape"] == [NUM_TOKENS, 2, 64]
        group, layer = holder(d, vllm.layer_number(name, {}))
        for role, side in (("k", "key"), ("v", "value")):
            due = np.frombuffer(bytes.fromhex(one[side]), "<f4").reshape(one["shape"])
            found = by_token(d, memory, group, role, lists[group.table])[layer]
            np.testing.assert_array_equal(found[:NUM_TOKENS], due, f"{name}: {role}")


def by_token(
    d: Descriptor, memory: oracle.Memory, group: Group, role: str, ids: list[int]
) -> NDArray[np.float32]:
    """`[layer, token, head, element]`, from the bytes of the blocks alone."""
    values = np.moveaxis(oracle.read_values(d, memory, group.id, role, ids), 3, 2)
    return np.asarray(values.reshape(len(group.layers), -1, 2, 64), np.float32)
