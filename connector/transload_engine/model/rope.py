"""Rotary position embeddings: how far each pair of elements turns, and turning them.

An element is paired with the one half a head further ("NeoX" style).
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor

from transload_engine.model.config import RopeConfig


class Turn(NamedTuple):
    """What the tokens of a step are turned by: `[tokens, 1, head_dim / 2]` each."""

    cos: Tensor
    sin: Tensor

    def apply(self, heads: Tensor) -> Tensor:
        """Turned queries or keys `[tokens, heads, head_dim]`, in new memory."""
        first, second = heads.chunk(2, dim=-1)
        return torch.cat(
            (first * self.cos - second * self.sin, second * self.cos + first * self.sin), dim=-1
        )


class Rotation:
    """A model's rotary embedding.

    Attributes:
        frequencies: Radians per position, `[head_dim / 2]`, f32.
        scale: Of cosines and sines.
    """

    def __init__(self, config: RopeConfig, head_dim: int) -> None:
        plain = 1.0 / config.theta ** (torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim)
        self.frequencies = _SCALINGS[config.kind](plain, config.theta, config.parameters)
        self.scale = _yarn_scale(config.parameters) if config.kind == "yarn" else 1.0

    def turn(self, positions: Tensor) -> Turn:
        """Of tokens at these positions, `[tokens]`."""
        angles = positions.to(torch.float32)[:, None, None] * self.frequencies
        return Turn(angles.cos() * self.scale, angles.sin() * self.scale)


def _default(plain: Tensor, theta: float, given: Mapping[str, Any]) -> Tensor:
    return plain


def _linear(plain: Tensor, theta: float, given: Mapping[str, Any]) -> Tensor:
    return plain / given["factor"]


def _llama3(plain: Tensor, theta: float, given: Mapping[str, Any]) -> Tensor:
    """Slow pairs turn slower by the factor, fast ones as ever, in between something between.

    As in Llama 3.1 (`_compute_llama3_parameters` @ transformers 5).
    """
    turns = given["original_max_position_embeddings"] * plain / (2 * math.pi)
    low, high = given["low_freq_factor"], given["high_freq_factor"]
    share = ((turns - low) / (high - low)).clamp(0, 1)
    return plain * share + plain / given["factor"] * (1 - share)


def _yarn(plain: Tensor, theta: float, given: Mapping[str, Any]) -> Tensor:
    """Pairs that turn often keep their speed, seldom ones are interpolated: arXiv 2309.00071.

    The borders are `beta_fast` and `beta_slow` turns within the original length.
    """
    num_pairs = len(plain)
    tokens = given["original_max_position_embeddings"]

    def pair_with(num_turns: float) -> float:
        return num_pairs * math.log(tokens / (num_turns * 2 * math.pi)) / math.log(theta)

    first, last = pair_with(given.get("beta_fast") or 32), pair_with(given.get("beta_slow") or 1)
    if given.get("truncate", True):
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, 2 * num_pairs - 1)
    # The published code's guard against a division by zero, part of the numbers by now.
    width = last - first or 0.001
    share = ((torch.arange(num_pairs, dtype=torch.float32) - first) / width).clamp(0, 1)
    return plain * (1 - share) + plain / given["factor"] * share


def _yarn_scale(given: Mapping[str, Any]) -> float:
    if "attention_factor" in given:
        return float(given["attention_factor"])
    mscale, mscale_all_dim = given.get("mscale"), given.get("mscale_all_dim")
    if mscale and mscale_all_dim:
        return _softening(given["factor"], mscale) / _softening(given["factor"], mscale_all_dim)
    return _softening(given["factor"], 1.0)


def _softening(factor: float, weight: float) -> float:
    return 0.1 * weight * math.log(factor) + 1.0 if factor > 1 else 1.0


_SCALINGS: Final[Mapping[str, Callable[[Tensor, float, Mapping[str, Any]], Tensor]]] = {
    "default": _default,
    "linear": _linear,
    "llama3": _llama3,
    "yarn": _yarn,
}
"""By `rope_type`: the frequencies, from the plain ones, the base and the parameters."""
