"""A LoRA adapter for the tiny model, made of chance: enough to change every answer."""

from __future__ import annotations

import json
import random
from array import array
from pathlib import Path

RANK = 8
HIDDEN, QUERY, VALUE, NUM_LAYERS = 256, 256, 128, 4
"""The tiny model's (tools/real_engine/model.py)."""


def write_adapter(folder: Path, seed: int) -> Path:
    """Writes it as PEFT does, and returns the folder."""
    source = random.Random(seed)
    header: dict[str, object] = {}
    weights = array("f")
    for layer in range(NUM_LAYERS):
        for name, width in (("q_proj", QUERY), ("v_proj", VALUE)):
            for part, shape in (("A", (RANK, HIDDEN)), ("B", (width, RANK))):
                start = 4 * len(weights)
                weights.extend(source.gauss(0, 0.3) for _ in range(shape[0] * shape[1]))
                key = f"base_model.model.model.layers.{layer}.self_attn.{name}.lora_{part}.weight"
                offsets = [start, 4 * len(weights)]
                header[key] = {"dtype": "F32", "shape": shape, "data_offsets": offsets}
    encoded = json.dumps(header).encode()
    folder.mkdir()
    (folder / "adapter_model.safetensors").write_bytes(
        len(encoded).to_bytes(8, "little") + encoded + weights.tobytes()
    )
    config = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "r": RANK,
        "lora_alpha": 2 * RANK,
        "lora_dropout": 0.0,
        "bias": "none",
        "target_modules": ["q_proj", "v_proj"],
        "base_model_name_or_path": "tiny",
        "inference_mode": True,
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder
