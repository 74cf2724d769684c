"""vLLM's cache specifications as plain values, with its names (`kv_cache_interface.py` @ 0.32.0).

Knows no layout and no page's interior, only what a specification says by itself.
"""

from __future__ import annotations

import fractions
from typing import Final

import msgspec

from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS

DTYPES: Final = {
    "float32": "f32",
    "float": "f32",
    "float16": "f16",
    "half": "f16",
    "bfloat16": "bf16",
    "uint8": "u8",
    "int8": "i8",
    "float8_e4m3fn": "e4m3",
    "float8_e5m2": "e5m2",
    "float8_e4m3fnuz": "e4m3fnuz",
    "float8_e5m2fnuz": "e5m2fnuz",
}
"""torch's names, with or without `torch.` before them, to ours. `uint8` is what vLLM calls any
8-bit cache whose format is told elsewhere."""

DTYPE_BYTES: Final = {"f32": 4, "f16": 2, "bf16": 2}
"""Others have one byte."""


class Attention(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Fields of `AttentionSpec`; bytes and tokens as there.

    Attributes:
        tokens_per_state: A whole number, or a fraction as `[numerator, denominator]`.
        block_stride_alignment: Bytes. Where vLLM has a `MultipleOf`, what it resolves to.
    """

    block_size: int
    num_kv_heads: int
    head_size: int
    dtype: str
    head_size_v: int | None = None
    kv_quant_mode: str = "NONE"
    page_size_padded: int | None = None
    num_head_slots: int | None = None
    state_content_bytes: int | None = None
    tokens_per_state: int | tuple[int, int] = 1
    max_tp_shards: int | None = None
    dcp_sharded: bool = True
    block_stride_alignment: int | None = None

    @property
    def value_size(self) -> int:
        """Elements of V in a head."""
        return self.head_size if self.head_size_v is None else self.head_size_v

    @property
    def state_tokens(self) -> tuple[int, int]:
        """`tokens_per_state` in lowest terms."""
        value = self.tokens_per_state
        pair = (value, 1) if isinstance(value, int) else value
        if min(pair) < 1:
            raise Contradiction(f"expected above 0, got {value}", "tokens_per_state")
        fraction = fractions.Fraction(*pair)
        return fraction.numerator, fraction.denominator

    @property
    def num_states(self) -> int:
        """States in a block: the axis N."""
        numerator, denominator = self.state_tokens
        if self.block_size * denominator % numerator:
            raise Contradiction(
                f"{numerator}/{denominator} tokens per state do not divide "
                f"block_size {self.block_size}",
                "tokens_per_state",
            )
        return self.block_size * denominator // numerator

    @property
    def num_slots(self) -> int:
        """The axis H of vLLM's layouts: heads, or halves of a page."""
        return self.num_kv_heads if self.num_head_slots is None else self.num_head_slots

    @property
    def cell_bytes(self) -> int:
        """The axis C of vLLM's layouts."""
        if self.state_content_bytes is not None:
            return self.state_content_bytes
        element = DTYPE_BYTES.get(dtype_of(self.dtype), 1)
        return (self.head_size + self.value_size) * element

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer's block, pads included."""
        dense = self.num_slots * self.num_states * self.cell_bytes
        padded = self.page_size_padded
        if padded is not None and padded < dense:
            raise Contradiction(
                f"{padded} bytes are less than the page's {dense}", "page_size_padded"
            )
        return dense if padded is None else padded


class FullAttentionSpec(Attention, frozen=True, kw_only=True, tag_field="class", tag=True):
    """All tokens are kept, even where the layer looks back less."""

    sliding_window: int | None = None
    attention_chunk_size: int | None = None
    non_causal: bool = False


class RSWASpec(FullAttentionSpec, frozen=True, kw_only=True, tag_field="class", tag=True):
    """All tokens of the prompt are kept, and the last `rswa_window` of those after it."""

    rswa_window: int


class SinkFullAttentionSpec(
    FullAttentionSpec, frozen=True, kw_only=True, tag_field="class", tag=True
):
    """All tokens are kept; sinks are in blocks of their own, which no request has."""

    sink_len: int | None = None


class SlidingWindowSpec(Attention, frozen=True, kw_only=True, tag_field="class", tag=True):
    """The last `sliding_window` tokens are kept."""

    sliding_window: int
    extra_retained_tokens: int = 0


class ChunkedLocalAttentionSpec(Attention, frozen=True, kw_only=True, tag_field="class", tag=True):
    """The current chunk's tokens are kept."""

    attention_chunk_size: int


class CrossAttentionSpec(Attention, frozen=True, kw_only=True, tag_field="class", tag=True):
    """The encoder's positions are kept."""


class CircularBufferSpec(Attention, frozen=True, kw_only=True, tag_field="class", tag=True):
    """One block for each request: a token's slot is its position modulo `block_size`."""


class MLAAttentionSpec(FullAttentionSpec, frozen=True, kw_only=True, tag_field="class", tag=True):
    """A latent per token; `head_size` counts latent and rotary elements."""

    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    cache_role: str = "SPARSE"
    is_index_group_leader: bool = False
    non_causal_multi_token_decode: bool = False


class SlidingWindowMLASpec(
    SlidingWindowSpec, frozen=True, kw_only=True, tag_field="class", tag=True
):
    """A latent for each of the last `sliding_window` tokens."""

    head_size_v: int | None = 0
    cache_dtype_str: str | None = None
    alignment: int | None = None
    model_version: str | None = None
    bounded_replay: bool = False


class MambaSpec(
    msgspec.Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    tag_field="class",
    tag=True,
):
    """One state for all tokens so far: convolution, then recurrence."""

    block_size: int
    shapes: tuple[tuple[int, ...], ...]
    dtypes: tuple[str, ...]
    page_size_padded: int | None = None
    mamba_type: str = ""
    mamba_cache_mode: str = "none"
    num_speculative_blocks: int = 0
    num_prefill_checkpoint_blocks: int = 0
    prefill_checkpoint_alignment: int | None = None
    num_heads: int = 1
    tokens_per_state: int = -1
    tp_replicated: bool = False
    dcp_sharded: bool = False
    block_stride_alignment: int | None = None

    num_slots = 1
    num_states = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """Elements of each state."""
        sizes = []
        for shape in self.shapes:
            size = 1
            for extent in shape:
                size *= extent
            sizes.append(size)
        return tuple(sizes)

    @property
    def cell_bytes(self) -> int:
        """Bytes of all states together."""
        if len(self.dtypes) != len(self.shapes):
            raise Contradiction(
                f"{len(self.shapes)} shapes and {len(self.dtypes)} dtypes", "dtypes"
            )
        elements = [DTYPE_BYTES.get(dtype_of(dtype), 1) for dtype in self.dtypes]
        return sum(size * each for size, each in zip(self.sizes, elements, strict=True))

    @property
    def page_bytes(self) -> int:
        """Bytes of one layer's block, pads included."""
        padded = self.page_size_padded
        if padded is not None and padded < self.cell_bytes:
            raise Contradiction(
                f"{padded} bytes are less than the states' {self.cell_bytes}", "page_size_padded"
            )
        return self.cell_bytes if padded is None else padded


AttentionSpec = (
    FullAttentionSpec
    | SlidingWindowSpec
    | ChunkedLocalAttentionSpec
    | CrossAttentionSpec
    | RSWASpec
    | SinkFullAttentionSpec
    | CircularBufferSpec
    | MLAAttentionSpec
    | SlidingWindowMLASpec
)
Spec = AttentionSpec | MambaSpec


class KVCacheTensor(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the pages of some layers are; bytes."""

    size: int
    layers: tuple[str, ...]
    layer_stride: int
    block_stride: int
    offset: int = 0
    host_resident: bool = False


class KVCacheGroup(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Layers that share a block table, as `KVCacheGroupSpec`.

    Attributes:
        specs: By layer name; `UniformTypeKVCacheSpecs` is taken apart, others are repeated. Empty
            where no page is anybody's but this engine's.
    """

    layer_names: tuple[str, ...]
    specs: dict[str, Spec]
    host_resident: bool = False
    enable_kv_transfer: bool = True


class KVCacheConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the engine decided for one rank, without what only its scheduler needs."""

    num_blocks: int
    kv_cache_tensors: tuple[KVCacheTensor, ...]
    kv_cache_groups: tuple[KVCacheGroup, ...]
    kv_cache_layout: str | None = None
    hisparse_host_num_blocks: int | None = None
    hisparse_shared_host_pool: bool = False


def dtype_of(name: str) -> str:
    """Our name of torch's dtype.

    Raises:
        UnknownPart: There is none.
    """
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise UnknownPart(f"no dtype {name[:MAX_QUOTED_CHARS]!r} here", "dtype")
    return found
