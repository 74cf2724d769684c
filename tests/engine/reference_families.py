"""Tiny checkpoints of the families that the reference engine reads, for vLLM to serve as well.

Weights are as wide as those of the tiny model (tools/real_engine/model.py), for the same reason;
norms and biases, which a new checkpoint has at 1 and at 0, are drawn as well.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
import transformers

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": 2048,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 4096,
    "initializer_range": 0.12,
    "bos_token_id": None,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
"""Heads are of 32 elements, where a family does not say: the least that vLLM's attention on a CPU
takes."""

_LLAMA3: Final = {
    "rope_type": "llama3",
    "rope_theta": 5000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
_YARN: Final = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 1024,
}


class Family(NamedTuple):
    """How a checkpoint is made.

    Attributes:
        seed: Of the weights: one of 21 to 25 with no tie in the answers to the tests' prompts.
    """

    seed: int
    config: Callable[[], transformers.PreTrainedConfig]


FAMILIES: Final = {
    "llama3": Family(22, lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=dict(_LLAMA3))),
    "yarn": Family(21, lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=dict(_YARN))),
    "mistral": Family(
        22, lambda: transformers.MistralConfig(**_SIZES, head_dim=64, sliding_window=None)
    ),
    "mistral-window": Family(22, lambda: transformers.MistralConfig(**_SIZES, sliding_window=48)),
    "qwen2": Family(22, lambda: transformers.Qwen2Config(**_SIZES)),
    "qwen3": Family(21, lambda: transformers.Qwen3Config(**_SIZES, head_dim=64)),
}


def write_family(family: str, folder: Path, tiny: Path) -> Path:
    """A checkpoint of one of `FAMILIES` in a new folder, with the tiny model's tokenizer."""
    with torch.random.fork_rng():
        torch.manual_seed(FAMILIES[family].seed)
        model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            FAMILIES[family].config()
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(tiny / name, folder)
    return folder
