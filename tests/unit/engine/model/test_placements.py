"""Descriptors of the engine's own cache: held against hand-written ones and against the oracle."""

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest

from support.abi_placements import PLACEMENTS, Shape
from support.tiny_models import generate, some_tokens, write_checkpoint
from transload_abi import Blocks, Pair, oracle, oracle_numbers
from transload_abi.canonical import canonical
from transload_abi.compare import compare
from transload_abi.floats import f64
from transload_abi.types import Codec, Descriptor, Param, Producer
from transload_engine.model.kv_cache import PagedCache
from transload_engine.model.llama import Llama
from transload_engine.model.placements import (
    FLOAT_DTYPES,
    FP8_DTYPES,
    LAYOUTS,
    KvSettings,
    ModelName,
    make_descriptor,
)
from transload_engine.model.runner import TorchRunner

BY_HAND = {
    "NHD": "LBNHC",
    "HND": "LBHNC",
    "k-transposed": "vllm_cpu",
    "x-packed": "rocm",
    "separate": "sglang",
}
DTYPES = FLOAT_DTYPES + FP8_DTYPES
PROMPT = some_tokens(21)
BLOCKS = [5, 2, 7, 3, 9, 1, 8]
SCALES = {"k": 0.1, "v": 0.3}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Llama:
    return Llama.load(write_checkpoint("llama-llama3", tmp_path_factory.mktemp("model") / "tiny"))


def described(model: Llama, layout: str, dtype: str = "f32") -> Descriptor:
    settings = KvSettings(
        layout, 4, 10, dtype, key_scale=SCALES["k"], value_scale=SCALES["v"], memory="shared"
    )
    return make_descriptor(model.config, settings, ModelName("tiny", "main", model.weights.digest))


def runner_of(model: Llama, layout: str, dtype: str = "f32") -> TorchRunner:
    return TorchRunner(model, PagedCache(described(model, layout, dtype)))


def oracle_memory(runner: TorchRunner) -> oracle.Memory:
    return {pool: memory.numpy() for pool, memory in runner.cache.memory.items()}


def elements(runner: TorchRunner, role: str, blocks: Sequence[int] = BLOCKS) -> oracle_numbers.Bits:
    """What the oracle finds: `[layers, blocks, heads, tokens, size]`."""
    descriptor = runner.cache.descriptor
    return oracle.read_elements(descriptor, oracle_memory(runner), "attention", role, blocks)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_each_layout_is_the_one_written_by_hand(model: Llama, layout: str, dtype: str) -> None:
    found = described(model, layout, dtype)
    shape = Shape(layers=2, blocks=10, heads=2, tokens=4, size=16, dtype=dtype)
    wanted = canonical(PLACEMENTS[BY_HAND.get(layout, layout)](shape))
    (group,), (by_hand,) = found.groups, wanted.groups
    assert (group.places, group.roles) == (by_hand.places, by_hand.roles)
    assert [(pool.id, pool.num_bytes, pool.block_bytes) for pool in found.pools] == [
        (pool.id, pool.num_bytes, pool.block_bytes) for pool in wanted.pools
    ]
    assert {pool.memory for pool in found.pools} == {"shared"}


@pytest.mark.parametrize("dtype", DTYPES)
def test_every_layout_holds_the_same_elements_and_gives_the_same_tokens(
    model: Llama, dtype: str
) -> None:
    first = runner_of(model, "LBHNC", dtype)
    tokens = generate(first, PROMPT, 6, BLOCKS)
    for layout in LAYOUTS:
        runner = runner_of(model, layout, dtype)
        assert generate(runner, PROMPT, 6, BLOCKS) == tokens, layout
        for role in "kv":
            assert np.array_equal(elements(runner, role), elements(first, role)), layout


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_oracle_reads_what_the_model_wrote(model: Llama, dtype: str) -> None:
    """In the first layer, whose keys and values no cache has rounded before."""
    exact, rounded = runner_of(model, "NHD"), runner_of(model, "x-packed", dtype)
    generate(exact, PROMPT, 1, BLOCKS)
    generate(rounded, PROMPT, 1, BLOCKS)
    for role in "kv":
        values = elements(exact, role)[0].view(np.float32)
        scale = np.float32(SCALES[role] if dtype in FP8_DTYPES else 1)
        wanted = oracle_numbers.encode(values / scale, dtype)
        assert np.array_equal(elements(rounded, role)[0], wanted)
        assert np.count_nonzero(wanted) > wanted.size // 2


def test_all_floats_give_about_the_same_tokens(model: Llama) -> None:
    wanted = generate(runner_of(model, "NHD"), PROMPT, 2, BLOCKS)
    assert generate(runner_of(model, "NHD", "f16"), PROMPT, 2, BLOCKS) == wanted


@pytest.mark.parametrize("layout", LAYOUTS)
def test_blocks_moved_by_a_plan_go_on_as_if_computed_there(model: Llama, layout: str) -> None:
    wanted = generate(runner_of(model, "HND"), PROMPT, 6, BLOCKS)
    prefill, decode = runner_of(model, layout), runner_of(model, "BHLNC")
    generate(prefill, PROMPT[:-1], 1, BLOCKS)
    there = [4, 6, 8, 2, 1, 3, 7]
    descriptors = prefill.cache.descriptor, decode.cache.descriptor
    assert compare(*descriptors).verdict in ("identical", "lossless")
    plan = Pair.compile(*descriptors).plan(Blocks({0: BLOCKS[:5]}, {0: there[:5]}, 20))
    oracle.execute(plan, oracle_memory(prefill), oracle_memory(decode))
    assert generate(decode, PROMPT, 6, there, first=20) == wanted


def test_the_model_is_named_with_its_rotation_and_scales(model: Llama) -> None:
    found = described(model, "NHD", "e4m3")
    assert (found.model.name, found.model.revision) == ("tiny", "main")
    assert found.model.weights == model.weights.digest
    assert found.model.rope.state == "applied"
    assert found.model.rope.params == {
        "rope_type": "llama3",
        "rope_theta": f64(5000.0),
        "factor": f64(8.0),
        "low_freq_factor": f64(1.0),
        "high_freq_factor": f64(4.0),
        "original_max_position_embeddings": 64,
    }
    scales: dict[str, Param] = {"scales.k": ["f32:3dcccccd"] * 2, "scales.v": ["f32:3e99999a"] * 2}
    assert found.groups[0].codec == Codec("fp8_per_tensor", scales)
    assert found.groups[0].null_block == 0
    assert found.producer == Producer(engine="transload", backend="torch", layout="NHD")


@pytest.mark.parametrize(("family", "window"), [("mistral-window", 7), ("llama", 0)])
def test_a_window_is_said_where_all_layers_have_it(
    tmp_path: Path, family: str, window: int
) -> None:
    model = Llama.load(write_checkpoint(family, tmp_path / family))
    (group,) = described(model, "NHD").groups
    assert (group.kind, group.window) == ("full", window)


def test_a_layer_that_looks_back_over_everything_unsays_the_window(model: Llama) -> None:
    config = dataclasses.replace(model.config, windows=(5, 0))
    (group,) = make_descriptor(config, KvSettings(), ModelName("tiny")).groups
    assert group.window == 0


@pytest.mark.parametrize(
    ("layout", "dtype", "complaint"),
    [
        ("NDH", "f32", "^layout 'NDH' is none of NHD, HND, LBHNC"),
        ("NHD", "i8", "^dtype 'i8' is none of f32, f16, bf16, e4m3, e5m2$"),
    ],
)
def test_what_there_is_not_is_refused(
    model: Llama, layout: str, dtype: str, complaint: str
) -> None:
    with pytest.raises(ValueError, match=complaint):
        described(model, layout, dtype)


def test_heads_that_are_no_whole_rows_cannot_be_packed(tmp_path: Path) -> None:
    model = Llama.load(write_checkpoint("qwen3", tmp_path / "qwen3"))
    with pytest.raises(ValueError, match=r"^heads of 24 elements are no rows of 16 bytes$"):
        described(model, "x-packed", "e4m3")
