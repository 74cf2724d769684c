"""Descriptors of this engine's cache, in the placements of engines that are in use.

Everything else reads the descriptor: a name of `LAYOUTS` means nothing outside of this module.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Final, NamedTuple

import torch

from transload_abi.builders import by_hand
from transload_abi.builders.rope import rope_parameters
from transload_abi.canonical import canonical
from transload_abi.check import check
from transload_abi.codecs import scale_param
from transload_abi.dtypes import DTYPES
from transload_abi.floats import f32
from transload_abi.types import (
    VERSION,
    Codec,
    Descriptor,
    Group,
    Memory,
    Model,
    Owner,
    Place,
    Pool,
    Producer,
    Role,
    Rope,
)
from transload_engine.model.config import ModelConfig

FLOAT_DTYPES: Final = ("f32", "f16", "bf16")
FP8_DTYPES: Final = ("e4m3", "e5m2")

_ALIGN: Final = 64
"""Bytes: what torch aligns memory on CPUs to."""

_ROW_BYTES: Final = 16
"""Of an x-packed row (ROCm's paged attention, FasterTransformer before it)."""


@dataclass(frozen=True)
class KvSettings:
    """How a cache is laid out.

    Attributes:
        layout: A name of `LAYOUTS`.
        block_size: Tokens of a block.
        num_blocks: The null block 0 included.
        dtype: A name of `FLOAT_DTYPES` or `FP8_DTYPES`.
        key_scale, value_scale: With an 8-bit dtype: what elements of every layer are multiplied
            with; rounded to binary32.
        memory: Where the pools are, for others to know.
    """

    layout: str = "LBHNC"
    block_size: int = 16
    num_blocks: int = 4096
    dtype: str = "f32"
    key_scale: float = 1.0
    value_scale: float = 1.0
    memory: Memory = "host"


class ModelName(NamedTuple):
    """Which model it is, as `transload_abi.types.Model` has it."""

    name: str
    revision: str = ""
    weights: str = ""


def make_descriptor(config: ModelConfig, settings: KvSettings, model: ModelName) -> Descriptor:
    """The checked, canonical descriptor of a cache of all of a model's layers.

    Raises:
        ValueError: There is no such layout or dtype.
        DescriptorError: A size is beyond the ABI's limits, or a text is none of its texts.
    """
    if settings.layout not in LAYOUTS:
        raise ValueError(f"layout {settings.layout!r} is none of {', '.join(LAYOUTS)}")
    if settings.dtype not in FLOAT_DTYPES + FP8_DTYPES:
        names = ", ".join(FLOAT_DTYPES + FP8_DTYPES)
        raise ValueError(f"dtype {settings.dtype!r} is none of {names}")
    sizes = _Sizes(config, settings)
    pools, places, roles = LAYOUTS[settings.layout](sizes)
    group = Group(
        id="attention",
        kind="full",
        layers=tuple(range(config.num_layers)),
        tokens_per_block=settings.block_size,
        places=places,
        roles=roles,
        codec=_codec(settings, config.num_layers),
        window=config.windows[0] if len(set(config.windows)) == 1 else 0,
        null_block=0,
        owner=Owner(heads=(0, config.num_kv_heads, config.num_kv_heads)),
    )
    found = Descriptor(
        abi=VERSION,
        model=Model(
            name=model.name,
            num_layers=config.num_layers,
            rope=Rope("applied", rope_parameters(config.rope.parameters)),
            revision=model.revision,
            weights=model.weights,
        ),
        pools=pools,
        groups=(group,),
        producer=Producer(engine="transload", backend="torch", layout=settings.layout),
    )
    check(found)
    return canonical(found)


class _Sizes:
    """The numbers that layouts are made of; `element` and all after it are bytes."""

    def __init__(self, config: ModelConfig, settings: KvSettings) -> None:
        self.num_layers = config.num_layers
        self.num_blocks = settings.num_blocks
        self.heads = config.num_kv_heads
        self.tokens = settings.block_size
        self.size = config.head_dim
        self.dtype = settings.dtype
        self.memory = settings.memory
        self.element = DTYPES[settings.dtype].bits // 8
        self.cell = 2 * self.size * self.element
        self.page = self.heads * self.tokens * self.cell

    def role(self, name: str, axes: "_Axes", first: int = 0, place: int = 0) -> Role:
        """A role by its axes, and its first element in the pages of a place."""
        return by_hand.role(
            name, self.dtype, first=first, place=place, H=axes.H, N=axes.N, D=axes.D
        )


class _Axes(NamedTuple):
    """A role's axes as `by_hand.role` takes them."""

    H: by_hand.Digits
    N: by_hand.Digits
    D: by_hand.Digits


_Placed = tuple[tuple[Pool, ...], tuple[Place, ...], tuple[Role, ...]]


def _nested(order: str, sizes: _Sizes) -> _Placed:
    """Cells of K and V of one head and token, in the order of the axes, outermost first."""
    extents = {"L": sizes.num_layers, "B": sizes.num_blocks, "H": sizes.heads}
    extents |= {"N": sizes.tokens, "C": sizes.cell}
    stride, step = {}, 1
    for axis in reversed(order):
        stride[axis] = step
        step *= extents[axis]
    pool = Pool(
        id="kv",
        memory=sizes.memory,
        num_bytes=step,
        num_blocks=sizes.num_blocks,
        align=_ALIGN,
        block_bytes=stride["B"] if order[0] == "B" else 0,
    )
    place = Place(
        pools=("kv",),
        block_stride=stride["B"],
        layer_stride=stride["L"] if sizes.num_layers > 1 else 0,
        page_bytes=sizes.page if set(order[:2]) == {"L", "B"} else 0,
    )
    axes = _Axes(
        H=(sizes.heads, stride["H"] // sizes.element),
        N=(sizes.tokens, stride["N"] // sizes.element),
        D=(sizes.size, 1),
    )
    return (pool,), (place,), (sizes.role("k", axes), sizes.role("v", axes, first=sizes.size))


def _key_transposed(sizes: _Sizes) -> _Placed:
    """For each head K `[D, N]`, then V `[N, D]`: vLLM's attention on CPUs."""
    half = sizes.tokens * sizes.size
    heads = (sizes.heads, 2 * half)
    key = _Axes(H=heads, N=(sizes.tokens, 1), D=(sizes.size, sizes.tokens))
    value = _Axes(H=heads, N=(sizes.tokens, sizes.size), D=(sizes.size, 1))
    return _pages(sizes, sizes.role("k", key), sizes.role("v", value, first=half))


def _x_packed(sizes: _Sizes) -> _Placed:
    """A plane of K `[H, D/x, N, x]` with rows of 16 bytes, then one of V `[H, D, N]`: ROCm."""
    x = _ROW_BYTES // sizes.element
    if sizes.size % x:
        raise ValueError(f"heads of {sizes.size} elements are no rows of {_ROW_BYTES} bytes")
    heads = (sizes.heads, sizes.tokens * sizes.size)
    rows = [(x, 1), (sizes.size // x, sizes.tokens * x)]
    key = _Axes(H=heads, N=(sizes.tokens, x), D=rows)
    value = _Axes(H=heads, N=(sizes.tokens, 1), D=(sizes.size, sizes.tokens))
    plane = sizes.heads * sizes.tokens * sizes.size
    return _pages(sizes, sizes.role("k", key), sizes.role("v", value, first=plane))


def _pages(sizes: _Sizes, *roles: Role) -> _Placed:
    pool, place = by_hand.packed_pool(
        "kv",
        num_layers=sizes.num_layers,
        num_blocks=sizes.num_blocks,
        page_bytes=sizes.page,
        memory=sizes.memory,
        align=_ALIGN,
    )
    return (pool,), (place,), roles


def _separate(sizes: _Sizes) -> _Placed:
    """For each layer memory for K and memory for V, `[tokens, H, D]` each: SGLang."""
    page = sizes.page // 2
    names = [tuple(f"{side}{layer}" for layer in range(sizes.num_layers)) for side in "kv"]
    pools = tuple(
        Pool(
            id=name,
            memory=sizes.memory,
            num_bytes=page * sizes.num_blocks,
            num_blocks=sizes.num_blocks,
            align=_ALIGN,
            block_bytes=page,
        )
        for side in names
        for name in side
    )
    places = tuple(Place(pools=side, block_stride=page, page_bytes=page) for side in names)
    axes = _Axes(
        H=(sizes.heads, sizes.size),
        N=(sizes.tokens, sizes.heads * sizes.size),
        D=(sizes.size, 1),
    )
    return pools, places, (sizes.role("k", axes), sizes.role("v", axes, place=1))


LAYOUTS: Final[Mapping[str, Callable[[_Sizes], _Placed]]] = {
    "NHD": partial(_nested, "LBNHC"),
    "HND": partial(_nested, "LBHNC"),
    **{
        order: partial(_nested, order)
        for order in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
    },
    "k-transposed": _key_transposed,
    "x-packed": _x_packed,
    "separate": _separate,
}
"""By name. Six are vLLM's (`kv_cache_layout.py` @ 0.32.0): the order in memory of layer, block,
head, token and cell; NHD and HND are its older names of two of them."""


def _codec(settings: KvSettings, num_layers: int) -> Codec:
    if settings.dtype in FLOAT_DTYPES:
        return Codec()
    scales = {"k": settings.key_scale, "v": settings.value_scale}
    return Codec(
        "fp8_per_tensor",
        {scale_param(role): [_scale(scale)] * num_layers for role, scale in scales.items()},
    )


def _scale(value: float) -> str:
    return f32(torch.tensor(value, dtype=torch.float32).item())
