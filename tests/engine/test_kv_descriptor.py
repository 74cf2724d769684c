"""The builder's descriptor of a running engine's cache, against that cache."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray

from engine.world import REQUEST_S
from real_engine.launch import MODEL_NAME, Engine, Engines, EngineSpec, Role
from support.abi_addresses import byte_of, holder
from transload_abi import oracle
from transload_abi.builders import Interior, vllm
from transload_abi.types import Descriptor, Model, Rope

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
        model=Model(name=MODEL_NAME, num_layers=4, rope=Rope(state="applied")), memory="host"
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


@pytest.fixture(params=["alike", "hybrid"])
def cache(request: pytest.FixtureRequest, both: dict[str, Observed]) -> Observed:
    """One of them."""
    return both[request.param]


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


def test_a_served_prompts_keys_and_values_are_found(cache: Observed) -> None:
    prompt = [7 + 5 * number % 1900 for number in range(NUM_TOKENS)]
    body = {"model": MODEL_NAME, "prompt": prompt, "max_tokens": 1, "temperature": 0}
    answer = httpx.post(f"{cache.engine.url}/v1/completions", json=body, timeout=REQUEST_S)
    answer.raise_for_status()
    for name in cache.views:
        kept = json.loads((cache.folder / f"{name}.json").read_text())
        assert kept["shape"] == [NUM_TOKENS, 2, 64]
        for role, side in (("k", "key"), ("v", "value")):
            due = np.frombuffer(bytes.fromhex(kept[side]), "<f4").reshape(kept["shape"])
            found = decoded(cache, name, role, kept)
            np.testing.assert_array_equal(found, due)
            assert np.unique(due).size > 1000


def decoded(cache: Observed, name: str, role: str, kept: dict[str, Any]) -> NDArray[np.float32]:
    """`[token, head, element]` of a layer, from the bytes of its blocks alone."""
    group, layer = holder(cache.descriptor, vllm.layer_number(name, {}))
    view = cache.views[name]
    memory = np.zeros(cache.descriptor.pools[0].num_bytes, np.uint8)
    for block, content in kept["blocks"].items():
        start = view["offset"] + int(block) * view["strides"][0]
        page = np.frombuffer(bytes.fromhex(content), np.uint8)
        memory[start : start + page.size] = page
    tokens = group.tokens_per_block
    blocks = sorted({slot // tokens for slot in kept["slots"]})
    values = oracle.read_values(cache.descriptor, {"kv": memory}, group.id, role, blocks)[layer]
    by_token = np.moveaxis(values, 2, 1).reshape(-1, 2, 64)
    rows = [blocks.index(slot // tokens) * tokens + slot % tokens for slot in kept["slots"]]
    return np.asarray(by_token[rows], np.float32)
