"""What a checkpoint's `config.json` says of its model, as far as this engine can compute it.

Whatever would change the numbers and is not known here is refused by name. Knows no tensor.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple

import msgspec

DEFAULT_ROPE_THETA: Final = 10000.0
"""As in transformers, where a configuration names none."""


class UnusableModel(ValueError):
    """The checkpoint is not one that this engine can run: the message names the file and why."""


@dataclass(frozen=True)
class RopeConfig:
    """The rotary embedding.

    Attributes:
        kind: Its `rope_type`.
        theta: Base of the wavelengths.
        parameters: All that the kind has, by the names of transformers 5's `rope_parameters`, with
            `rope_type` and `rope_theta`.
    """

    kind: Literal["default", "linear", "llama3", "yarn"]
    theta: float
    parameters: Mapping[str, Any]


@dataclass(frozen=True)
class ModelConfig:
    """A decoder of the Llama family.

    Attributes:
        architecture: As the checkpoint names it.
        head_dim: Elements of a head of queries, keys and values.
        max_model_tokens: Positions that the model was made for.
        windows: By layer: tokens that a query looks back to, its own included; 0 for all.
        has_qkv_bias, has_output_bias: In attention's projections.
        has_head_norms: Whether each head's queries and keys are normalised before their rotation.
        ties_embeddings: Whether the output projection is the embedding.
        eos_ids: Tokens that end an answer.
    """

    architecture: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    max_model_tokens: int
    rms_norm_eps: float
    rope: RopeConfig
    windows: tuple[int, ...]
    has_qkv_bias: bool
    has_output_bias: bool
    has_mlp_bias: bool
    has_head_norms: bool
    ties_embeddings: bool
    eos_ids: tuple[int, ...]


def read_config(folder: Path) -> ModelConfig:
    """The configuration of the checkpoint in a folder.

    Raises:
        UnusableModel: It asks for what this engine does not compute, or contradicts itself.
        OSError: `config.json` cannot be read.
    """
    file = folder / "config.json"
    try:
        return _model(msgspec.json.decode(file.read_bytes(), type=_File))
    except (msgspec.MsgspecError, UnusableModel) as error:
        raise UnusableModel(f"{file}: {error}") from error


class _File(msgspec.Struct):
    """The fields of `config.json` that matter here; those of one value must not have another."""

    architectures: list[str]
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    rms_norm_eps: float
    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int | None = None
    attention_bias: bool = False
    mlp_bias: bool = False
    tie_word_embeddings: bool = False
    rope_parameters: dict[str, Any] | None = None
    rope_scaling: dict[str, Any] | None = None
    rope_theta: float | None = None
    original_max_position_embeddings: int | None = None
    sliding_window: int | None = None
    use_sliding_window: bool = False
    max_window_layers: int = 0
    layer_types: list[Literal["full_attention", "sliding_attention"]] | None = None
    eos_token_id: int | list[int] | None = None
    hidden_act: Literal["silu"] = "silu"
    partial_rotary_factor: float | None = None
    quantization_config: None = None


class _Family(NamedTuple):
    """How an architecture differs from the others.

    Attributes:
        qkv_bias, output_bias: None where `attention_bias` decides.
        head_dim: Where the configuration names none; 0: the hidden size's share of a head.
        windows: Which layers look back over `sliding_window`: none, all, or those that
            `use_sliding_window`, `layer_types` and `max_window_layers` say.
    """

    qkv_bias: bool | None
    output_bias: bool | None
    has_head_norms: bool
    head_dim: int
    windows: Literal["none", "all", "chosen"]


_FAMILIES: Final = {
    "LlamaForCausalLM": _Family(None, None, False, 0, "none"),
    "MistralForCausalLM": _Family(False, False, False, 0, "all"),
    "Qwen2ForCausalLM": _Family(True, False, False, 0, "chosen"),
    "Qwen3ForCausalLM": _Family(None, None, True, 128, "chosen"),
}
"""As transformers 5 computes them (`models/*/modeling_*.py`)."""


class _RopeNames(NamedTuple):
    due: frozenset[str] = frozenset()
    allowed: frozenset[str] = frozenset()


_ROPES: Final[dict[str, _RopeNames]] = {
    "default": _RopeNames(),
    "linear": _RopeNames(frozenset({"factor"})),
    "llama3": _RopeNames(
        frozenset({"factor", "low_freq_factor", "high_freq_factor"}),
        frozenset({"original_max_position_embeddings"}),
    ),
    "yarn": _RopeNames(
        frozenset({"factor"}),
        frozenset(
            {"original_max_position_embeddings", "attention_factor", "beta_fast", "beta_slow"}
            | {"mscale", "mscale_all_dim", "truncate"}
        ),
    ),
}
"""By kind, its parameters besides the base. `dynamic` is none of them: it turns keys by how long
the request has become, so that blocks could not be shared between requests."""


def _model(file: _File) -> ModelConfig:
    (architecture,) = file.architectures if len(file.architectures) == 1 else ("",)
    family = _FAMILIES.get(architecture)
    if family is None:
        raise UnusableModel(
            f"architectures: {file.architectures} is none of {', '.join(_FAMILIES)}"
        )
    bias = file.attention_bias
    num_kv_heads = file.num_key_value_heads or file.num_attention_heads
    if file.num_attention_heads % num_kv_heads:
        raise UnusableModel(
            f"num_key_value_heads: {num_kv_heads} do not divide {file.num_attention_heads} heads"
        )
    head_dim = file.head_dim or family.head_dim or file.hidden_size // file.num_attention_heads
    if head_dim % 2:
        raise UnusableModel(f"head_dim: {head_dim} elements cannot be rotated in pairs")
    eos = file.eos_token_id
    return ModelConfig(
        architecture=architecture,
        vocab_size=file.vocab_size,
        hidden_size=file.hidden_size,
        intermediate_size=file.intermediate_size,
        num_layers=file.num_hidden_layers,
        num_heads=file.num_attention_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_model_tokens=file.max_position_embeddings,
        rms_norm_eps=file.rms_norm_eps,
        rope=_rope(file),
        windows=_windows(file, family),
        has_qkv_bias=bias if family.qkv_bias is None else family.qkv_bias,
        has_output_bias=bias if family.output_bias is None else family.output_bias,
        has_mlp_bias=file.mlp_bias,
        has_head_norms=family.has_head_norms,
        ties_embeddings=file.tie_word_embeddings,
        eos_ids=() if eos is None else tuple(eos) if isinstance(eos, list) else (eos,),
    )


def _windows(file: _File, family: _Family) -> tuple[int, ...]:
    num_layers, window = file.num_hidden_layers, file.sliding_window or 0
    if family.windows == "all":
        if file.layer_types is not None:
            raise UnusableModel("layer_types: this architecture has one type")
        return (window,) * num_layers
    if family.windows == "none" or not file.use_sliding_window:
        return (0,) * num_layers
    if file.layer_types is None:
        return tuple(window if at >= file.max_window_layers else 0 for at in range(num_layers))
    if len(file.layer_types) != num_layers:
        raise UnusableModel(f"layer_types: {len(file.layer_types)} of {num_layers} layers")
    return tuple(window if kind == "sliding_attention" else 0 for kind in file.layer_types)


def _rope(file: _File) -> RopeConfig:
    """Either spelling: `rope_parameters`, or `rope_theta` with `rope_scaling`."""
    given = file.rope_parameters or file.rope_scaling or {}
    given = {name: value for name, value in given.items() if value is not None}
    old_kind = given.pop("type", "default")
    kind = given.pop("rope_type", old_kind)
    theta = given.pop("rope_theta", file.rope_theta or DEFAULT_ROPE_THETA)
    share = given.pop("partial_rotary_factor", file.partial_rotary_factor)
    if share not in (None, 1):
        raise UnusableModel(f"partial_rotary_factor: {share}; only whole heads can be rotated")
    if kind not in _ROPES:
        raise UnusableModel(f"rope_type: {kind!r} is none of {', '.join(_ROPES)}")
    if "original_max_position_embeddings" in _ROPES[kind].allowed:
        tokens = file.original_max_position_embeddings
        tokens = tokens or given.get("original_max_position_embeddings")
        given["original_max_position_embeddings"] = tokens or file.max_position_embeddings
    _check_rope(kind, given | {"rope_theta": theta})
    return RopeConfig(kind, float(theta), {"rope_type": kind, "rope_theta": float(theta), **given})


def _check_rope(kind: str, given: Mapping[str, Any]) -> None:
    due, allowed = _ROPES[kind]
    for name in sorted(due - given.keys()):
        raise UnusableModel(f"rope_parameters: {kind} lacks {name}")
    for name in sorted(given.keys() - due - allowed - {"rope_theta"}):
        raise UnusableModel(f"rope_parameters: {kind} has an unknown {name}")
    for name, value in given.items():
        if not isinstance(value, int | float):
            raise UnusableModel(f"rope_parameters: {name} is no number: {value!r}")
