"""A checkpoint's safetensors as the model's weights, each tensor accounted for.

Weights are f32, whatever the checkpoint has. Knows the names and shapes of the Llama family
(transformers' `state_dict`), and not what is done with them.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from transload_engine.model.config import ModelConfig, UnusableModel

_INDEX: Final = "model.safetensors.index.json"
_SINGLE: Final = "model.safetensors"
_DERIVED: Final = ".rotary_emb.inv_freq"
"""End of names of tensors that old checkpoints hold although the configuration says them."""


@dataclass(frozen=True)
class Linear:
    """A projection: `weight` is `[outputs, inputs]`, `bias` `[outputs]`."""

    weight: Tensor
    bias: Tensor | None

    def apply(self, rows: Tensor) -> Tensor:
        """`[..., inputs]` to `[..., outputs]`."""
        return torch.nn.functional.linear(rows, self.weight, self.bias)


@dataclass(frozen=True)
class LayerWeights:
    """One decoder layer; the norms' vectors are `[hidden_size]`, those of heads `[head_dim]`."""

    attention_norm: Tensor
    queries: Linear
    keys: Linear
    values: Linear
    output: Linear
    query_norm: Tensor | None
    key_norm: Tensor | None
    mlp_norm: Tensor
    gate: Linear
    up: Linear
    down: Linear


@dataclass(frozen=True)
class Weights:
    """A whole model.

    Attributes:
        embedding: `[vocab_size, hidden_size]`.
        head: Likewise; the same tensor where embeddings are tied.
        digest: `sha256:` and hex digits, the same however the tensors are spread over files: of
            each tensor by ascending name the name, a zero byte, its dtype and shape as
            `torch.float32[2, 3]`, a zero byte, and its bytes as stored.
    """

    embedding: Tensor
    layers: tuple[LayerWeights, ...]
    norm: Tensor
    head: Tensor
    digest: str


def load_weights(folder: Path, config: ModelConfig) -> Weights:
    """Read all tensors of a checkpoint.

    Raises:
        UnusableModel: A tensor is missing, too many, or of another shape than the configuration's.
        OSError: A file cannot be read.
    """
    with ExitStack() as stack:
        tensors = _Tensors(folder, stack)
        embedding = tensors.take("model.embed_tokens.weight", config.vocab_size, config.hidden_size)
        layers = tuple(_layer(tensors, config, number) for number in range(config.num_layers))
        norm = tensors.take("model.norm.weight", config.hidden_size)
        if config.ties_embeddings:
            tensors.skip("lm_head.weight")
            head = embedding
        else:
            head = tensors.take("lm_head.weight", config.vocab_size, config.hidden_size)
        tensors.check_all_taken()
        return Weights(embedding, layers, norm, head, tensors.digest())


def _layer(tensors: "_Tensors", config: ModelConfig, number: int) -> LayerWeights:
    hidden, inner = config.hidden_size, config.intermediate_size
    query_size = config.num_heads * config.head_dim
    kv_size = config.num_kv_heads * config.head_dim
    at = f"model.layers.{number}"

    def linear(name: str, outputs: int, inputs: int, has_bias: bool) -> Linear:
        weight = tensors.take(f"{at}.{name}.weight", outputs, inputs)
        return Linear(weight, tensors.take(f"{at}.{name}.bias", outputs) if has_bias else None)

    def head_norm(name: str) -> Tensor | None:
        if not config.has_head_norms:
            return None
        return tensors.take(f"{at}.self_attn.{name}.weight", config.head_dim)

    return LayerWeights(
        attention_norm=tensors.take(f"{at}.input_layernorm.weight", hidden),
        queries=linear("self_attn.q_proj", query_size, hidden, config.has_qkv_bias),
        keys=linear("self_attn.k_proj", kv_size, hidden, config.has_qkv_bias),
        values=linear("self_attn.v_proj", kv_size, hidden, config.has_qkv_bias),
        output=linear("self_attn.o_proj", hidden, query_size, config.has_output_bias),
        query_norm=head_norm("q_norm"),
        key_norm=head_norm("k_norm"),
        mlp_norm=tensors.take(f"{at}.post_attention_layernorm.weight", hidden),
        gate=linear("mlp.gate_proj", inner, hidden, config.has_mlp_bias),
        up=linear("mlp.up_proj", inner, hidden, config.has_mlp_bias),
        down=linear("mlp.down_proj", hidden, inner, config.has_mlp_bias),
    )


class _Tensors:
    """All tensors of a checkpoint's files, each to be taken once."""

    def __init__(self, folder: Path, stack: ExitStack) -> None:
        self._folder = folder
        self._holders: dict[str, Any] = {}
        self._taken: dict[str, Tensor] = {}
        for file in _files(folder):
            try:
                holder = stack.enter_context(safe_open(file, framework="pt"))
            except SafetensorError as error:
                raise UnusableModel(f"{file}: {error}") from error
            self._holders |= dict.fromkeys(holder.keys(), holder)
        self._unused = {name for name in self._holders if not name.endswith(_DERIVED)}

    def take(self, name: str, *shape: int) -> Tensor:
        """A tensor of that shape, as f32."""
        holder = self._holders.get(name)
        if holder is None:
            raise UnusableModel(f"{self._folder}: no tensor {name}")
        stored = holder.get_tensor(name)
        if tuple(stored.shape) != shape:
            raise UnusableModel(
                f"{self._folder}: {name} should be {list(shape)} and is {list(stored.shape)}"
            )
        self._unused.discard(name)
        self._taken[name] = stored
        return stored.to(torch.float32)

    def skip(self, name: str) -> None:
        """Leave a tensor that may be there unread."""
        self._unused.discard(name)

    def check_all_taken(self) -> None:
        """Refuse what nobody took: it would have changed the numbers."""
        if self._unused:
            raise UnusableModel(f"{self._folder}: nobody knows tensor {min(self._unused)}")

    def digest(self) -> str:
        """See `Weights`."""
        total = hashlib.sha256()
        for name in sorted(self._taken):
            tensor = self._taken[name].contiguous()
            total.update(f"{name}\0{tensor.dtype}{list(tensor.shape)}\0".encode())
            total.update(tensor.flatten().view(torch.uint8).numpy())
        return f"sha256:{total.hexdigest()}"


def _files(folder: Path) -> Iterator[Path]:
    index = folder / _INDEX
    if not index.exists():
        yield folder / _SINGLE
        return
    try:
        names = set(json.loads(index.read_bytes())["weight_map"].values())
    except (ValueError, KeyError, AttributeError) as error:
        raise UnusableModel(f"{index}: no index of tensors by file ({error!r})") from error
    yield from (folder / name for name in sorted(names))
