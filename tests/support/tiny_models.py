"""Tiny checkpoints of every family, with random weights, and what transformers makes of them.

Weights are larger than a training's start would have them, so that logits differ enough for a wrong
rotation, mask or bias to show.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from transload_engine.core.runner import Chunk, Runner, Sampling

VOCABULARY: Final = 128

_SIZES: Final[dict[str, Any]] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
    "eos_token_id": 2,
}

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
    "original_max_position_embeddings": 128,
}

FAMILIES: Final[dict[str, Callable[[], transformers.PreTrainedConfig]]] = {
    "llama": lambda: transformers.LlamaConfig(**_SIZES),
    "llama-biases": lambda: transformers.LlamaConfig(
        **_SIZES, attention_bias=True, mlp_bias=True, tie_word_embeddings=True
    ),
    "llama-linear": lambda: transformers.LlamaConfig(
        **_SIZES, rope_parameters={"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}
    ),
    "llama-llama3": lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=dict(_LLAMA3)),
    "llama-yarn": lambda: transformers.LlamaConfig(**_SIZES, rope_parameters=dict(_YARN)),
    "llama-yarn-mscale": lambda: transformers.LlamaConfig(
        **_SIZES,
        rope_parameters=_YARN
        | {"mscale": 1.2, "mscale_all_dim": 0.8, "beta_fast": 16.0, "truncate": False},
    ),
    "mistral": lambda: transformers.MistralConfig(**_SIZES, head_dim=32, sliding_window=None),
    "mistral-window": lambda: transformers.MistralConfig(**_SIZES, sliding_window=7),
    "qwen2": lambda: transformers.Qwen2Config(**_SIZES),
    "qwen2-window": lambda: transformers.Qwen2Config(
        **_SIZES, use_sliding_window=True, sliding_window=5, max_window_layers=1
    ),
    "qwen3": lambda: transformers.Qwen3Config(**_SIZES, head_dim=24),
}


def write_checkpoint(family: str, folder: Path, *, max_shard_size: str = "1GB") -> Path:
    """A checkpoint of one of `FAMILIES` in a new folder; the same each time."""
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = transformers.AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]
            FAMILIES[family]()
        )
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                torch.nn.init.normal_(parameter, mean=float("norm" in name), std=0.3)
    model.save_pretrained(folder, max_shard_size=max_shard_size)
    return folder


def expected_logits(folder: Path, token_ids: Sequence[int]) -> torch.Tensor:
    """What transformers computes behind each token: `[tokens, vocabulary]`, f32."""
    model = transformers.AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        return model(torch.tensor([list(token_ids)])).logits[0]


def some_tokens(count: int, seed: int = 5) -> list[int]:
    """Ids that repeat rarely."""
    generator = torch.Generator().manual_seed(seed)
    return [int(each) for each in torch.randint(3, VOCABULARY, (count,), generator=generator)]


def generate(
    runner: Runner, prompt: Sequence[int], count: int, block_ids: Sequence[int], first: int = 0
) -> list[int]:
    """The likeliest tokens behind a prompt whose first tokens are in the blocks already."""
    tokens, num_prompt = list(prompt), len(prompt)
    for drawn in range(count):
        chunk = Chunk(
            "a", tokens, num_prompt, first, len(tokens), block_ids, Sampling(), num_drawn=drawn
        )
        (chosen,) = runner.run([chunk])
        assert chosen is not None
        first = len(tokens)
        tokens.append(chosen.token_id)
    return tokens[num_prompt:]
