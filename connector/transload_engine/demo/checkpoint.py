"""A small Llama made here, out of nothing: its answers are noise, their cost and caches are real.

A tensor's bytes are SHAKE-256 of its name, so that every machine makes the same model. The output
projection knows letters and spaces alone: answers can be read as text, never end by themselves, and
come back as the same tokens.
"""

import hashlib
import json
import os
import shutil
import string
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float16]

BYTES: Final = 256
END: Final = "<|end|>"
TURN: Final = "<|turn|>"

# With these sizes 993 tokens took 1.1 s to read, 48 took 1.0 s to write and the prompt's blocks
# 0.02 s to move (one thread an engine, 2 shared cores with AVX2 at load 8, 2026-11).
CONFIG: Final[Mapping[str, Any]] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": BYTES + 2,
    "hidden_size": 384,
    "intermediate_size": 1024,
    "num_hidden_layers": 6,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 64,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": False,
    "eos_token_id": BYTES,
}

TEMPLATE: Final = (
    "{% for message in messages %}"
    "<|turn|>{{ message.role }}\n{{ message.content }}<|end|>"
    "{% endfor %}"
    "{% if add_generation_prompt %}<|turn|>assistant\n{% endif %}"
)

_SPACE: Final = "\u0120"
"""As byte-level tokenizers spell it."""

_SPACE_GAIN: Final = 1.5
"""Of a space's logits over a letter's: words of a few letters."""

_QUERY_GAIN: Final = 3.0
"""Queries of this spread look at some tokens more than at others, or all answers were alike."""

_RECIPE: Final = "1"
"""Raised when `_tensors` or `_tokenizer` change, so that old folders are not taken for new ones."""


def cache_root() -> Path:
    """Where models are kept between runs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "transload"


def key() -> str:
    """Names the model: equal keys mean equal bytes."""
    recipe = json.dumps([_RECIPE, CONFIG, TEMPLATE], sort_keys=True)
    return hashlib.sha256(recipe.encode()).hexdigest()[:12]


def ensure(root: Path) -> Path:
    """The model's folder under `root`, written first where it is not there.

    Raises:
        OSError: It cannot be written.
    """
    folder = root / f"demo-model-{key()}"
    if folder.is_dir():
        return folder
    root.mkdir(parents=True, exist_ok=True)
    made = Path(tempfile.mkdtemp(prefix="demo-model-", dir=root))
    try:
        write(made)
        made.rename(folder)
    except OSError:
        # Another run may have been first.
        if not folder.is_dir():
            raise
    finally:
        shutil.rmtree(made, ignore_errors=True)
    return folder


def write(folder: Path) -> None:
    """Write the checkpoint and its tokenizer into an empty folder.

    Raises:
        OSError: It cannot be written.
    """
    from safetensors.numpy import save_file

    save_file(dict(_tensors()), folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "tokenizer.json").write_text(_tokenizer())
    told = {"eos_token": END, "chat_template": TEMPLATE, "model_max_length": 4096}
    (folder / "tokenizer_config.json").write_text(json.dumps(told, indent=2))
    (folder / "config.json").write_text(json.dumps(CONFIG, indent=2))


def _vocabulary() -> dict[str, int]:
    """A token for each byte, by the characters that byte-level tokenizers spell bytes with."""
    from tokenizers.pre_tokenizers import ByteLevel

    return {character: at for at, character in enumerate(sorted(ByteLevel.alphabet()))}


def _tokenizer() -> str:
    """The bytes' tokens, and two that begin and end turns."""
    from tokenizers import AddedToken, Tokenizer
    from tokenizers.decoders import ByteLevel as ByteLevelDecoder
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel

    tokenizer = Tokenizer(BPE(_vocabulary(), []))
    tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = ByteLevelDecoder()
    tokenizer.add_special_tokens([AddedToken(each, normalized=False) for each in (END, TURN)])
    return tokenizer.to_str(pretty=True)


def _tensors() -> Iterator[tuple[str, Array]]:
    """All of them, f16; projections keep the spread of what they are given."""
    hidden, inner = CONFIG["hidden_size"], CONFIG["intermediate_size"]
    query_size = CONFIG["num_attention_heads"] * CONFIG["head_dim"]
    kv_size = CONFIG["num_key_value_heads"] * CONFIG["head_dim"]
    projections = {
        "self_attn.q_proj": (query_size, hidden, _QUERY_GAIN),
        "self_attn.k_proj": (kv_size, hidden, 1.0),
        "self_attn.v_proj": (kv_size, hidden, 1.0),
        "self_attn.o_proj": (hidden, query_size, 1.0),
        "mlp.gate_proj": (inner, hidden, 1.0),
        "mlp.up_proj": (inner, hidden, 1.0),
        "mlp.down_proj": (hidden, inner, 1.0),
    }
    ones = np.ones(hidden, np.float16)
    yield "model.embed_tokens.weight", _noise("embedding", CONFIG["vocab_size"], hidden, 1.0)
    for layer in range(CONFIG["num_hidden_layers"]):
        at = f"model.layers.{layer}"
        for name, (outputs, inputs, gain) in projections.items():
            tensor = _noise(f"{layer} {name}", outputs, inputs, gain / inputs**0.5)
            yield f"{at}.{name}.weight", tensor
        yield f"{at}.input_layernorm.weight", ones
        yield f"{at}.post_attention_layernorm.weight", ones
    yield "model.norm.weight", ones
    yield "lm_head.weight", _head(hidden)


def _head(hidden: int) -> Array:
    """Rows of zeros but for letters and the space: the likeliest token is one of these."""
    noise = _noise("head", CONFIG["vocab_size"], hidden, 4 / hidden**0.5)
    vocabulary = _vocabulary()
    gains = np.zeros((CONFIG["vocab_size"], 1), np.float16)
    gains[[vocabulary[letter] for letter in string.ascii_lowercase]] = 1.0
    gains[vocabulary[_SPACE]] = _SPACE_GAIN
    return noise * gains


def _noise(name: str, rows: int, columns: int, spread: float) -> Array:
    """Evenly spread numbers with this standard deviation, none of them 0."""
    drawn = hashlib.shake_256(name.encode()).digest(rows * columns)
    steps = np.frombuffer(drawn, np.int8).astype(np.float32) + 0.5
    return (steps * (spread * 12**0.5 / 256)).astype(np.float16).reshape(rows, columns)
