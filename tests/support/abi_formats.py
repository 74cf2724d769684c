"""Descriptors of each format that vLLM writes, written out by hand: a function for each.

One group, one pool with blocks outermost, pages of the sizes that the engine has with 8 heads of
128 elements and 16 tokens, unless the format has its own. `FORMATS` has the bytes of each page.
Nothing here uses a builder.
"""

from collections.abc import Callable, Sequence
from typing import Final

from support.abi_pages import PLAIN, Field, Shape, cells, described, page_bytes, regions, role_of
from transload_abi.canonical import Term
from transload_abi.dtypes import DTYPES
from transload_abi.floats import f32
from transload_abi.types import Codec, Descriptor, Kind, Param, Role

SIGNS: Final = "sha256:" + "5a" * 32
"""Of a table of signs, as a rotation is named."""


SHAPE: Final = Shape()
MLA: Final = Shape(1, 64, 512)
M3: Final = Shape(4, 128, 128)
V4: Final = Shape(1, 256, 512)
V41: Final = Shape(1, 128, 512)
KEYS: Final = Shape(1, 128, 128)


def _heads(shape: Shape) -> list[tuple[str, int]]:
    return [("H", shape.heads), ("N", shape.tokens)]


def _attention(
    fields: Sequence[Field], shape: Shape, codec: Codec = PLAIN, kind: Kind = "full"
) -> Descriptor:
    roles = cells(fields, _heads(shape))
    return described(kind, roles, page_bytes(roles), shape, codec)


def scales(shape: Shape, **of_roles: float) -> dict[str, Param]:
    """Parameters `scales.ROLE`, the same for each layer."""
    return {f"scales.{role}": [f32(scale)] * shape.layers for role, scale in of_roles.items()}


# --- keys and values


def plain(dtype: str = "bf16", shape: Shape = SHAPE, kind: Kind = "full") -> Descriptor:
    """FlashAttention, Triton, FlashInfer: `[K V]` for each head and token."""
    fields = [Field("k", dtype, "D", shape.size), Field("v", dtype, "D", shape.size)]
    return _attention(fields, shape, kind=kind)


def fp8(dtype: str = "e4m3", k: float = 1.0, v: float = 1.0, shape: Shape = SHAPE) -> Descriptor:
    """8-bit floats with a scale for each layer, which is not in the cache."""
    fields = [Field("k", dtype, "D", shape.size), Field("v", dtype, "D", shape.size)]
    return _attention(fields, shape, Codec("fp8_per_tensor", scales(shape, k=k, v=v)))


def diff_kv(dtype: str = "bf16", shape: Shape = SHAPE) -> Descriptor:
    """Keys and values of other sizes."""
    return _attention([Field("k", dtype, "D", 192), Field("v", dtype, "D", 128)], shape)


def cpu(dtype: str = "bf16", shape: Shape = SHAPE) -> Descriptor:
    """CPU attention: for each head K transposed `[D, N]`, then V `[N, D]`."""
    bits = DTYPES[dtype].bits
    half = shape.tokens * shape.size * bits
    extents = {"H": shape.heads, "N": shape.tokens, "D": shape.size}
    head = ("H", 1, shape.heads, 2 * half)
    k = (head, ("N", 1, shape.tokens, bits), ("D", 1, shape.size, shape.tokens * bits))
    v = (head, ("N", 1, shape.tokens, shape.size * bits), ("D", 1, shape.size, bits))
    return _planes([("k", k, 0), ("v", v, half)], extents, dtype, shape)


def _planes(
    parts: Sequence[tuple[str, Sequence[Term], int]],
    extents: dict[str, int],
    dtype: str,
    shape: Shape,
) -> Descriptor:
    bits = DTYPES[dtype].bits
    roles = [
        Role(name, dtype, bits, extents, tuple(term for term in terms if term[2] > 1), base)
        for name, terms, base in parts
    ]
    return described("full", roles, page_bytes(roles), shape, PLAIN)


def rocm(dtype: str = "bf16", shape: Shape = SHAPE) -> Descriptor:
    """ROCm paged attention: a K plane `[H, D/x, N, x]`, x being 16 bytes, a V plane `[H, D, N]`."""
    bits = DTYPES[dtype].bits
    heads, tokens, size, x = shape.heads, shape.tokens, shape.size, 128 // bits
    head = ("H", 1, heads, tokens * size * bits)
    k = (
        head,
        ("N", 1, tokens, x * bits),
        ("D", 1, x, bits),
        ("D", x, size // x, tokens * x * bits),
    )
    v = (head, ("N", 1, tokens, bits), ("D", 1, size, tokens * bits))
    extents = {"H": heads, "N": tokens, "D": size}
    return _planes([("k", k, 0), ("v", v, heads * tokens * size * bits)], extents, dtype, shape)


def aiter(dtype: str = "bf16", shape: Shape = SHAPE) -> Descriptor:
    """AITER's tiles: a K plane `[H, D/x, N, x]`, a V plane `[H, N/x, D, x]`, x being 16 bytes."""
    bits = DTYPES[dtype].bits
    heads, tokens, size, x = shape.heads, shape.tokens, shape.size, 128 // bits
    head = ("H", 1, heads, tokens * size * bits)
    k = (
        head,
        ("N", 1, tokens, x * bits),
        ("D", 1, x, bits),
        ("D", x, size // x, tokens * x * bits),
    )
    v = (head, ("N", 1, x, bits), ("N", x, tokens // x, size * x * bits), ("D", 1, size, x * bits))
    extents = {"H": heads, "N": tokens, "D": size}
    return _planes([("k", k, 0), ("v", v, heads * tokens * size * bits)], extents, dtype, shape)


def planes(dtype: str = "bf16", shape: Shape = SHAPE) -> Descriptor:
    """B12X: a plane of K, then one of V, `[N, H, D]` each."""
    axes = [("N", shape.tokens), ("H", shape.heads)]
    fields = [[Field(role, dtype, "D", shape.size)] for role in "kv"]
    roles = regions(fields, axes)
    return described("full", roles, page_bytes(roles), shape, PLAIN)


def per_token_head(dtype: str = "i8", shape: Shape = SHAPE) -> Descriptor:
    """Triton: `[K, its scale, V, its scale]` for each head and token."""
    fields = [
        field
        for side in "kv"
        for field in (Field(side, dtype, "D", shape.size), Field(f"{side}_scale", "f32"))
    ]
    return _attention(fields, shape, Codec("per_token_head"))


def int4(is_rotated: bool = True, shape: Shape = SHAPE) -> Descriptor:
    """Triton: as `per_token_head` in four bits; the zero point is in the scale's lowest bits."""
    fields = [
        field
        for side in "kv"
        for field in (Field(side, "u4", "D", shape.size), Field(f"{side}_scale", "f32"))
    ]
    rotations: dict[str, Param] = {"rotation.k": SIGNS, "rotation.v": SIGNS}
    return _attention(fields, shape, Codec("int4_zero_point", rotations if is_rotated else {}))


def nvfp4(
    is_swizzled: bool = False, k: float = 1.0, v: float = 1.0, shape: Shape = SHAPE
) -> Descriptor:
    """FlashInfer: K, K's scales, V, V's scales, each `[H, N, ...]`; a scale for 16 elements.

    `is_swizzled`: V's scales in tiles of four tokens by four scales, the tokens innermost.
    """
    num_groups = shape.size // 16
    fields = [
        [field]
        for side in "kv"
        for field in (
            Field(side, "e2m1", "D", shape.size),
            Field(f"{side}_group_scale", "e4m3", "G", num_groups),
        )
    ]
    roles = regions(fields, _heads(shape))
    if is_swizzled:
        last = roles.pop()
        tile = (("N", 1, 4, 8), ("G", 1, 4, 32))
        tiles = (("G", 4, num_groups // 4, 128), ("N", 4, shape.tokens // 4, 32 * num_groups))
        terms = (("H", 1, shape.heads, 8 * shape.tokens * num_groups), *tile, *tiles)
        kept = tuple(term for term in terms if term[2] > 1)
        roles.append(Role(last.role, last.dtype, last.bits, last.shape, kept, last.base_bits))
    codec = Codec("block_scaled", scales(shape, k=k, v=v))
    return described("full", roles, page_bytes(roles), shape, codec)


def nvfp4_slots(k: float = 1.0, v: float = 1.0, shape: Shape = SHAPE) -> Descriptor:
    """MiniMax-M3's attention: for each head a slot of K, one of V, elements before scales."""
    num_groups = shape.size // 16
    slot = shape.tokens * (4 * shape.size + 8 * num_groups)
    roles = []
    for number, side in enumerate("kv"):
        parts = (
            Field(side, "e2m1", "D", shape.size),
            Field(f"{side}_group_scale", "e4m3", "G", num_groups),
        )
        base = number * slot
        for field in parts:
            axes = [("H", shape.heads, 2 * slot), ("N", shape.tokens, field.bits)]
            roles.append(role_of(field, axes, base))
            base += shape.tokens * field.bits
    codec = Codec("block_scaled", scales(shape, k=k, v=v))
    return described("full", roles, page_bytes(roles), shape, codec)


def turboquant(
    key_bits: int = 4, value_bits: int = 4, has_norm: bool = True, shape: Shape = SHAPE
) -> Descriptor:
    """Codes, `[K, its norm, V, its scale and what code 0 is]` for each head and token."""
    fields = [Field("k_code", "u8", "D", shape.size * key_bits // 8)]
    if has_norm:
        fields.append(Field("k_norm", "f16"))
    fields.append(Field("v_code", "u8", "D", shape.size * value_bits // 8))
    fields += [Field("v_scale", "f16"), Field("v_zero", "f16")]
    params: dict[str, Param] = {"key_bits": key_bits, "value_bits": value_bits, "tables": SIGNS}
    return _attention(fields, shape, Codec("turboquant", params))


def ultraquant(is_rotated: bool = True, shape: Shape = SHAPE) -> Descriptor:
    """`[K, scales, V, scales]` for each head and token; a power of two for 32 elements."""
    fields = [
        field
        for side in "kv"
        for field in (
            Field(side, "e2m1", "D", shape.size),
            Field(f"{side}_group_scale", "ue8m0", "G", shape.size // 32),
        )
    ]
    rotation: dict[str, Param] = {"rotation.k": SIGNS} if is_rotated else {}
    return _attention(fields, shape, Codec("block_scaled", rotation))


def minimax_m3(shape: Shape = M3) -> Descriptor:
    """MiniMax-M3's keys and values."""
    return plain("bf16", shape)


def cross(shape: Shape = SHAPE) -> Descriptor:
    """Keys and values of an encoder's positions."""
    return plain("bf16", shape, kind="cross")


def pooled(shape: Shape = SHAPE) -> Descriptor:
    """Whisper's pooling: two states for each token."""
    fields = [Field("k", "bf16", "D", shape.size), Field("v", "bf16", "D", shape.size)]
    roles = cells(fields, [("H", shape.heads), ("N", 2 * shape.tokens)])
    return described("full", roles, page_bytes(roles), shape, PLAIN, tokens_per_state=(1, 2))


# --- latents


def _latent(
    fields: Sequence[Sequence[Field]],
    shape: Shape,
    codec: Codec = PLAIN,
    *,
    align: int = 1,
    kind: Kind = "mla",
    tokens_per_state: int = 1,
    window: int = 0,
) -> Descriptor:
    """Regions of rows; `shape.tokens` counts the block's tokens."""
    roles = regions(fields, [("N", shape.tokens // tokens_per_state)])
    return described(
        kind,
        roles,
        page_bytes(roles, align),
        shape,
        codec,
        tokens_per_state=(tokens_per_state, 1),
        window=window,
    )


def mla(dtype: str = "bf16", shape: Shape = MLA) -> Descriptor:
    """Rows of 512 elements of a latent and 64 of a rotary part."""
    return _latent(
        [[Field("latent", dtype, "D", shape.size), Field("rope", dtype, "D", 64)]], shape
    )


def mla_fp8(dtype: str = "e4m3", scale: float = 1.0, shape: Shape = MLA) -> Descriptor:
    """The same in 8 bits, with a scale for each layer."""
    fields = [[Field("latent", dtype, "D", shape.size), Field("rope", dtype, "D", 64)]]
    codec = Codec("fp8_per_tensor", scales(shape, latent=scale, rope=scale))
    return _latent(fields, shape, codec)


def ds_mla_656(shape: Shape = MLA) -> Descriptor:
    """Rows of 512 e4m3, four f32 scales, 64 bf16."""
    row = [
        Field("latent", "e4m3", "D", shape.size),
        Field("latent_scale", "f32", "G", shape.size // 128),
        Field("rope", "bf16", "D", 64),
    ]
    return _latent([row], shape, Codec("fp8_ds_mla_656"))


def ds_mla_352(shape: Shape = MLA) -> Descriptor:
    """Rows of 512 e2m1, 64 e4m3 of the rotary part, 32 scales: scale s at 8 * (s & 3) + s // 4."""
    row = [
        Field("latent", "e2m1", "D", 512),
        Field("rope", "e4m3", "D", 64),
        Field("latent_scale", "e4m3", "G", 32),
    ]
    latent, rope, last = cells(row, [("N", shape.tokens)])
    terms = (*last.terms[:-1], ("G", 1, 4, 64), ("G", 4, 8, 8))
    scale = Role(last.role, last.dtype, last.bits, last.shape, terms, last.base_bits)
    roles = [latent, rope, scale]
    return described("mla", roles, page_bytes(roles), shape, Codec("block_scaled"))


def _v4(kind: Kind, shape: Shape, tokens_per_state: int = 1, window: int = 0) -> Descriptor:
    """DeepSeek V4: rows of 448 e4m3 and 64 bf16; after all of them rows of 7 scales and a pad."""
    states = shape.tokens // tokens_per_state
    row = [Field("latent", "e4m3", "D", 448), Field("rope", "bf16", "D", 64)]
    scale = role_of(Field("latent_scale", "ue8m0", "G", 7), [("N", states, 64)], 576 * 8 * states)
    return described(
        kind,
        [*cells(row, [("N", states)]), scale],
        -(-584 * states // 576) * 576,
        shape,
        Codec("block_scaled"),
        tokens_per_state=(tokens_per_state, 1),
        window=window,
    )


def v4_c4(shape: Shape = V4) -> Descriptor:
    """One state for four tokens."""
    return _v4("mla", shape, 4)


def v4_c128(shape: Shape = V4) -> Descriptor:
    """One state for 128 tokens."""
    return _v4("mla", shape, 128)


def v4_window(shape: Shape = MLA) -> Descriptor:
    """The last 128 tokens."""
    return _v4("sliding_window_mla", shape, window=128)


def v4_c4_bf16(shape: Shape = V4) -> Descriptor:
    """Plain rows, one for four tokens."""
    row = [Field("latent", "bf16", "D", 448), Field("rope", "bf16", "D", 64)]
    return _latent([row], shape, tokens_per_state=4, align=512)


def v41_mxfp8(shape: Shape = V41) -> Descriptor:
    """DeepSeek V4.1: 512 e4m3, after all rows 16 powers of two each."""
    fields = [[Field("latent", "e4m3", "D", 512)], [Field("latent_scale", "ue8m0", "G", 16)]]
    return _latent(fields, shape, Codec("block_scaled"), tokens_per_state=4, align=512)


def v41_nvfp4(shape: Shape = V41) -> Descriptor:
    """512 e2m1, after all rows 32 e4m3 scales each."""
    fields = [[Field("latent", "e2m1", "D", 512)], [Field("latent_scale", "e4m3", "G", 32)]]
    return _latent(fields, shape, Codec("block_scaled"), tokens_per_state=4, align=512)


# --- what chooses tokens, rings, states


def indexer(shape: Shape = MLA, *, tokens_per_state: int = 1, align: int = 1) -> Descriptor:
    """128 e4m3 for each state; after all of them an f32 each."""
    fields = [[Field("index_k", "e4m3", "D", 128)], [Field("index_k_scale", "f32", "G", 1)]]
    codec = Codec("block_scaled")
    return _latent(
        fields, shape, codec, kind="full", tokens_per_state=tokens_per_state, align=align
    )


def v4_indexer(shape: Shape = V4) -> Descriptor:
    """The same for four tokens each, with pads."""
    return indexer(shape, tokens_per_state=4, align=576)


def v4_indexer_mxfp4(shape: Shape = V4) -> Descriptor:
    """128 e2m1 for each state; after all of them four powers of two each."""
    fields = [[Field("index_k", "e2m1", "D", 128)], [Field("index_k_scale", "ue8m0", "G", 4)]]
    codec = Codec("block_scaled")
    return _latent(fields, shape, codec, kind="full", tokens_per_state=4, align=576)


def minimax_m3_indexer(shape: Shape = KEYS) -> Descriptor:
    """MiniMax-M3's keys by which tokens are chosen."""
    return _latent([[Field("index_k", "bf16", "D", shape.size)]], shape, kind="full")


def _compressor(tokens: int, size: int, window: int) -> Descriptor:
    row = [Field(role, "f32", "D", size) for role in ("state_kv", "state_score")]
    shape = Shape(1, tokens, size)
    return _latent([row], shape, kind="sliding_window", window=window, align=576)


def v4_compressor_c4() -> Descriptor:
    """DeepSeek V4: rows that are yet to be compressed four to one, of the last eight tokens."""
    return _compressor(4, 1024, 8)


def v4_compressor_c128() -> Descriptor:
    """The same of 128 to one."""
    return _compressor(8, 512, 128)


def compressor_ring(capacity: int = 8) -> Descriptor:
    """DeepSeek V4.1: the same in a block for each request."""
    row = [Field(role, "f32", "D", 512) for role in ("state_kv", "state_score")]
    return _latent([row], Shape(1, capacity, 512), kind="ring", window=capacity)


def key_ring(capacity: int = 8) -> Descriptor:
    """Qwen4: keys that are yet to be compressed, and three positions each."""
    row = [Field("index_k", "bf16", "D", 128), Field("position", "i64", "D", 3)]
    return _latent([row], Shape(1, capacity, 128), kind="ring", window=capacity)


def compressed_keys(shape: Shape = KEYS) -> Descriptor:
    """Qwen4: one such key for four tokens."""
    row = [[Field("index_k", "bf16", "D", shape.size)]]
    return _latent(row, shape, kind="full", tokens_per_state=4)


def recurrent(shape: Shape = SHAPE) -> Descriptor:
    """A gated delta layer: the convolution's state in bf16, then the layer's own in f32."""
    fields = [[Field("conv", "bf16", "D", 24576)], [Field("ssm", "f32", "D", 64 * 128 * 128)]]
    return _latent(fields, shape, kind="recurrent", tokens_per_state=shape.tokens)


def recurrent_by_head(shape: Shape = SHAPE) -> Descriptor:
    """The same in parts that can be cut by heads: each head's state `[N, D]`, part after part."""
    axes = [("H", shape.heads), ("N", 1)]
    fields = [[Field(f"conv_{part}", "bf16", "D", 3 * shape.size)] for part in "qkv"]
    fields.append([Field("ssm_h", "f32", "D", shape.size**2)])
    roles = regions(fields, axes)
    states = (shape.tokens, 1)
    return described("recurrent", roles, page_bytes(roles), shape, PLAIN, tokens_per_state=states)


def opaque(text: str = "engine 1.0, backend X", page: int = 65536) -> Descriptor:
    """Pages whose inside nobody describes."""
    roles = [role_of(Field("page", "u8", "D", page), [], 0)]
    return described("full", roles, page, SHAPE, Codec("opaque"), opaque=text)


FORMATS: Final[dict[str, tuple[Callable[[], Descriptor], int]]] = {
    "bf16": (plain, 65536),
    "f16": (lambda: plain("f16"), 65536),
    "f32": (lambda: plain("f32"), 131072),
    "fp8": (fp8, 32768),
    "fp8 e5m2": (lambda: fp8("e5m2"), 32768),
    "diff_kv": (diff_kv, 81920),
    "cpu": (cpu, 65536),
    "per_token_head i8": (per_token_head, 33792),
    "per_token_head e4m3": (lambda: per_token_head("e4m3"), 33792),
    "int4": (int4, 17408),
    "int4 unrotated": (lambda: int4(is_rotated=False), 17408),
    "nvfp4": (nvfp4, 18432),
    "nvfp4 swizzled": (lambda: nvfp4(is_swizzled=True), 18432),
    "nvfp4 slots": (nvfp4_slots, 18432),
    "turboquant k8v4": (lambda: turboquant(8, 4, has_norm=False), 25088),
    "turboquant 4bit": (turboquant, 17152),
    "turboquant k3v4": (lambda: turboquant(3, 4), 15104),
    "turboquant 3bit": (lambda: turboquant(3, 3), 13056),
    "ultraquant": (ultraquant, 17408),
    "rocm": (rocm, 65536),
    "aiter": (aiter, 65536),
    "planes": (planes, 65536),
    "mla": (mla, 73728),
    "mla fp8": (mla_fp8, 36864),
    "656": (ds_mla_656, 41984),
    "352": (ds_mla_352, 22528),
    "132": (indexer, 8448),
    "584 c4": (v4_c4, 37440),
    "584 c128": (v4_c128, 1728),
    "584 window": (v4_window, 37440),
    "v4 c4 bf16": (v4_c4_bf16, 65536),
    "v4 132": (v4_indexer, 8640),
    "v4 68": (v4_indexer_mxfp4, 4608),
    "v4 compressor c4": (v4_compressor_c4, 32832),
    "v4 compressor c128": (v4_compressor_c128, 32832),
    "528": (v41_mxfp8, 16896),
    "288": (v41_nvfp4, 9216),
    "compressor ring": (compressor_ring, 32768),
    "minimax_m3": (minimax_m3, 262144),
    "minimax_m3 indexer": (minimax_m3_indexer, 32768),
    "key ring": (key_ring, 2240),
    "compressed keys": (compressed_keys, 8192),
    "recurrent": (recurrent, 4243456),
    "recurrent by head": (recurrent_by_head, 542720),
    "cross": (cross, 65536),
    "pooled": (pooled, 131072),
    "opaque": (opaque, 65536),
}
"""By name: a descriptor of such pages, and the bytes of one."""
