"""Safetensors into weights: every tensor is asked for, and their digest is one of contents."""

import hashlib
import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from support.tiny_models import write_checkpoint
from transload_engine.model.checkpoint import Weights, load_weights
from transload_engine.model.config import UnusableModel, read_config

UP = "model.layers.1.mlp.up_proj.weight"


def load(folder: Path) -> Weights:
    return load_weights(folder, read_config(folder))


def rewrite(folder: Path, **changes: torch.Tensor | None) -> None:
    """Replace tensors, or remove those that are None."""
    file = folder / "model.safetensors"
    tensors = load_file(file) | changes
    save_file({name: value for name, value in tensors.items() if value is not None}, file)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_checkpoint("llama", tmp_path / "llama")


def test_shards_are_one_checkpoint(folder: Path, tmp_path: Path) -> None:
    shards = write_checkpoint("llama", tmp_path / "shards", max_shard_size="60KB")
    assert len(list(shards.glob("*.safetensors"))) > 2
    whole, sharded = load(folder), load(shards)
    assert torch.equal(whole.layers[1].up.weight, sharded.layers[1].up.weight)
    assert whole.digest == sharded.digest


def test_a_missing_tensor_is_named(folder: Path) -> None:
    rewrite(folder, **{UP: None})
    with pytest.raises(UnusableModel, match=f"no tensor {UP}$"):
        load(folder)


def test_a_surplus_tensor_is_named(folder: Path) -> None:
    rewrite(folder, **{"model.layers.0.self_attn.q_proj.bias": torch.zeros(64)})
    with pytest.raises(UnusableModel, match=r"nobody knows tensor model\.layers\.0.*q_proj\.bias$"):
        load(folder)


def test_a_tensor_of_another_shape_is_named(folder: Path) -> None:
    rewrite(folder, **{UP: torch.zeros(64, 96)})
    with pytest.raises(UnusableModel, match=rf"{UP} should be \[96, 64\] and is \[64, 96\]$"):
        load(folder)


def test_what_the_configuration_says_may_be_there_again(folder: Path) -> None:
    before = load(folder).digest
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    rewrite(folder, **{name: torch.zeros(8)})
    assert load(folder).digest == before


def test_a_tied_head_is_the_embedding_whatever_the_file_has(tmp_path: Path) -> None:
    folder = write_checkpoint("llama-biases", tmp_path / "tied")
    rewrite(folder, **{"lm_head.weight": torch.zeros(128, 64)})
    weights = load(folder)
    assert weights.head is weights.embedding


def test_weights_are_f32(folder: Path) -> None:
    rewrite(folder, **{UP: torch.full((96, 64), 1.5, dtype=torch.bfloat16)})
    weight = load(folder).layers[1].up.weight
    assert weight.dtype == torch.float32
    assert weight.eq(1.5).all()


def test_the_digest_is_of_names_types_shapes_and_bytes(folder: Path) -> None:
    raw = (folder / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    header = json.loads(raw[8 : 8 + length])
    total = hashlib.sha256()
    for name in sorted(header.keys() - {"__metadata__"}):
        first, end = header[name]["data_offsets"]
        total.update(f"{name}\0torch.float32{header[name]['shape']}\0".encode())
        total.update(raw[8 + length + first : 8 + length + end])
    assert load(folder).digest == "sha256:" + total.hexdigest()


def test_files_that_are_none_are_refused(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(b"no tensors at all")
    with pytest.raises(UnusableModel, match=r"model\.safetensors: "):
        load(folder)
    (folder / "model.safetensors.index.json").write_text('{"weight_map": []}')
    with pytest.raises(UnusableModel, match=r"index\.json: no index of tensors by file"):
        load(folder)
