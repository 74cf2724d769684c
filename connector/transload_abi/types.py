"""The descriptor `kvabi/1` as values: which fields there are, their units and their defaults.

Knows nothing of bytes on the wire (`text`), of what must hold between fields (`check`), or of any
engine (`builders`). Nobody changes a value once it is made.

**Where an element is.** The bit address of an element, from the start of its pool, is::

    8 * (place.offset + layer_position * place.layer_stride + block * place.block_stride)
    + role.base_bits + sum((index[axis] // div) % extent * stride_bits for each term)

Bit `a` is bit `a % 8` of byte `a // 8`, bit 0 the least significant; elements are little-endian.
A field that is left out has the default given here, and the canonical form leaves defaults out.
"""

from typing import Final, Literal

import msgspec

VERSION: Final = "kvabi/1"

Kind = Literal[
    "full",
    "sliding_window",
    "chunked_local",
    "mla",
    "sliding_window_mla",
    "cross",
    "recurrent",
    "ring",
]
"""What the blocks of a group hold.

`full`: every token. `sliding_window`: the last `window` tokens. `chunked_local`: the tokens of the
current chunk of `window` tokens. `mla`, `sliding_window_mla`: one latent per token in place of K
and V. `cross`: the encoder's positions. `recurrent`: one state for all tokens so far. `ring`: one
block per request, slot = position modulo `window`.
"""

Memory = Literal["device", "host", "shared", "file"]

Param = int | str | list[int | str]
"""A parameter of a codec or of RoPE; floats are text, see `floats`."""


class Rope(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What was done to the keys' rotary part before they were stored.

    Attributes:
        state: `applied`: keys are stored rotated by their position. `not_applied`: they are not.
            `none`: the model has no rotary embedding. `unknown`: nobody says; never converts.
        params: The rotation, with the names of the model's configuration (`rope_theta`, ...).
    """

    state: Literal["none", "applied", "not_applied", "unknown"]
    params: dict[str, Param] = {}


class Model(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Whose keys and values these are.

    Attributes:
        name: As its publisher names it.
        num_layers: Of the whole model; `Group.layers` number from 0 below it.
        rope: The rotary embedding.
        revision: Of the publication; empty where unknown.
        weights: `sha256:` and 64 hex digits over what the engine loaded; empty where unknown. Where
            both sides have it, it alone decides whether the model is the same.
        adapter: Digest or name of the adapter (LoRA) in the weights' path; empty: none.
        kv_share: Pairs (layer, layer whose KV it reads); such a layer has no KV of its own.
    """

    name: str
    num_layers: int
    rope: Rope
    revision: str = ""
    weights: str = ""
    adapter: str = ""
    kv_share: tuple[tuple[int, int], ...] = ()


class Producer(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Who wrote the descriptor: for people, outside every fingerprint and every decision."""

    engine: str = ""
    version: str = ""
    backend: str = ""
    layout: str = ""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One piece of memory that blocks lie in.

    All groups in a pool share its block ids: a block id belongs to one table at a time, so groups
    of different tables may overlay the same bytes.

    Attributes:
        id: Unique among the pools.
        memory: Where it is. `host` is pageable or pinned memory of the engine's host; `shared` can
            be mapped by other processes of that host.
        num_bytes: Size.
        num_blocks: Block ids are 0 to `num_blocks - 1`.
        align: Bytes that the pool's first byte is aligned to; a power of two.
        block_bytes: Above zero: block `b` owns the bytes from `b * block_bytes` to
            `(b + 1) * block_bytes`, pads included, and nothing else is in them. Such a block may
            be copied whole.
    """

    id: str
    memory: Memory
    num_bytes: int
    num_blocks: int
    align: int = 1
    block_bytes: int = 0


class TokenSlice(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which tokens a rank of a context-parallel group holds.

    Token `t` is on rank `(t // interleave) % size`. The rank packs its own tokens without gaps:
    its local index is `t // (interleave * size) * interleave + t % interleave`.
    """

    rank: int = 0
    size: int = 1
    interleave: int = 1


class Owner(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Which part of the whole a group's pages hold.

    Attributes:
        heads: First head, end, and heads of the whole model: `(2, 4, 8)` holds heads 2 and 3 of 8.
            `(0, 1, 1)` where there are no heads (latents, states).
        tokens: The slice of the tokens.
        replica: Ordinal and number of the ranks that hold exactly this part.
    """

    heads: tuple[int, int, int] = (0, 1, 1)
    tokens: TokenSlice = TokenSlice()
    replica: tuple[int, int] = (0, 1)


class Place(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the pages of a group start: one page per layer and block.

    Attributes:
        pools: One pool for all layers, or one per layer in the order of `Group.layers` (then
            `layer_stride` is 0).
        block_stride: Bytes from a block to the next.
        layer_stride: Bytes from a layer to the next.
        offset: Bytes from the pool's start to block 0 of the first layer.
        page_bytes: Above zero: a page owns so many bytes from its start, pads included, and
            nothing else is in them. Zero where pages interleave (heads outside of layers).
    """

    pools: tuple[str, ...]
    block_stride: int
    layer_stride: int = 0
    offset: int = 0
    page_bytes: int = 0


class Role(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One kind of element in a page, and its address within the page.

    Attributes:
        role: A name of `roles.ROLES`.
        dtype: A name of `dtypes.DTYPES`.
        bits: Bits of an element; what the dtype says.
        shape: Extents of the axes that the role has, of `H` head, `N` state in the block, `D`
            element in the head or latent, `G` group that shares a scale. `H` is the heads that are
            held here, `N` is `tokens_per_block / tokens_per_state`.
        terms: Rows `(axis, div, extent, stride_bits)`: one digit of an axis's index. The digits of
            an axis, from `div` 1 upwards, each start where the one before ends (`div * extent`),
            and together they are the axis's extent; an axis of extent 1 has none.
        base_bits: Of the element at index 0, from the start of the page.
        place: Index into `Group.places`.
    """

    role: str
    dtype: str
    bits: int
    shape: dict[str, int]
    terms: tuple[tuple[str, int, int, int], ...] = ()
    base_bits: int = 0
    place: int = 0


class Codec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How elements become numbers.

    Attributes:
        id: A name of `codecs.CODECS`.
        params: What the codec's row there asks for.
    """

    id: str = "none"
    params: dict[str, Param] = {}


class Group(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Layers whose pages are alike and that share a block table.

    Attributes:
        id: Unique among the groups.
        kind: What the blocks hold.
        layers: The model's layer numbers, in the order of the placement.
        tokens_per_block: Tokens of this owner's slice that a block holds.
        places: Where pages start; more than one where K and V are apart.
        roles: What is in a page.
        codec: How its elements become numbers.
        tokens_per_state: A fraction (numerator, denominator) in lowest terms: (4, 1) is a state
            for each four tokens, (1, 2) two states for each token.
        window: Tokens: of the sliding window, the chunk or the ring. In a `full` group: all tokens
            are held, but queries look back no further. 0: no bound.
        table: Groups of the same number share their block ids' meaning: one block list serves all.
        null_block: The block id that stands for "not held"; None: there is none.
        transferable: False where the engine rebuilds the group by itself.
        owner: The slice.
        opaque: Not empty: nobody has shown that the roles are true. Says who writes such pages;
            they move only as they are, between groups that say the same.
    """

    id: str
    kind: Kind
    layers: tuple[int, ...]
    tokens_per_block: int
    places: tuple[Place, ...]
    roles: tuple[Role, ...]
    codec: Codec = Codec()
    tokens_per_state: tuple[int, int] = (1, 1)
    window: int = 0
    table: int = 0
    null_block: int | None = None
    transferable: bool = True
    owner: Owner = Owner()
    opaque: str = ""

    @property
    def states_per_block(self) -> int:
        """The extent of `N`."""
        numerator, denominator = self.tokens_per_state
        return self.tokens_per_block * denominator // numerator

    @property
    def num_heads(self) -> int:
        """The extent of `H`: heads that are held here."""
        first, end, _ = self.owner.heads
        return end - first

    def role(self, name: str) -> Role | None:
        """The role of that name, or None."""
        return next((each for each in self.roles if each.role == name), None)


class Descriptor(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the bytes of one rank's KV cache mean."""

    abi: str
    model: Model
    pools: tuple[Pool, ...]
    groups: tuple[Group, ...]
    producer: Producer = Producer()
    endian: Literal["little"] = "little"

    def pool(self, pool_id: str) -> Pool:
        """The pool of that id, which a checked descriptor always has."""
        return next(pool for pool in self.pools if pool.id == pool_id)
