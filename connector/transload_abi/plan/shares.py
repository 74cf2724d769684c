"""What two groups have in common, and how large the pieces are in which it moves."""

from math import gcd
from typing import NamedTuple

from transload_abi.errors import Refused
from transload_abi.plan.axes import Digits, digits, is_additive, offset
from transload_abi.plan.types import Side
from transload_abi.types import Group, Place, Role, TokenSlice


class Share(NamedTuple):
    """Layers, heads and tokens that two groups both hold, cut into pieces.

    Attributes:
        src: The source's group.
        dst: The destination's group.
        layers: What both hold.
        heads: First and end, of the model's.
        piece: States in a piece; divides the states of a block on either side.
    """

    src: Group
    dst: Group
    layers: tuple[int, ...]
    heads: tuple[int, int]
    piece: int

    @property
    def src_parts(self) -> int:
        """Pieces in a block of the source."""
        return self.src.states_per_block // self.piece

    @property
    def dst_parts(self) -> int:
        """Pieces in a block of the destination."""
        return self.dst.states_per_block // self.piece

    @property
    def is_whole(self) -> bool:
        """Whether a piece is a block with all heads on both sides."""
        heads = (self.src.owner.heads, self.dst.owner.heads)
        return self.src_parts == self.dst_parts == 1 and heads[0] == heads[1]


def is_same_slice(src: TokenSlice, dst: TokenSlice) -> bool:
    """Whether local token `i` is the same token on both sides."""
    return src == dst or src.size == dst.size == 1


def share(src: Group, dst: Group, layers: tuple[int, ...]) -> Share:
    """What moves between two matched groups.

    Raises:
        Refused: No piece begins at a whole byte.
    """
    ours, theirs = src.owner.heads, dst.owner.heads
    heads = (max(ours[0], theirs[0]), min(ours[1], theirs[1]))
    return Share(src, dst, layers, heads, _piece(src, dst))


def _piece(src: Group, dst: Group) -> int:
    step = gcd(src.states_per_block, dst.states_per_block)
    slices = (src.owner.tokens, dst.owner.tokens)
    if not is_same_slice(*slices):
        step = gcd(step, *(each.interleave for each in slices if each.size > 1))
    axes = [digits(role, "N") for group in (src, dst) for role in group.roles]
    counts = [group.states_per_block for group in (src, dst) for _ in group.roles]
    for piece in range(step, 0, -1):
        if step % piece == 0 and all(
            _is_cut(axis, count, piece) for axis, count in zip(axes, counts, strict=True)
        ):
            return piece
    raise Refused(
        f"blocks of {src.tokens_per_block} and {dst.tokens_per_block} tokens can only be cut "
        f"inside of a byte ({src.id} to {dst.id})"
    )


def _is_cut(axis: Digits, count: int, piece: int) -> bool:
    """Whether a block may be cut into pieces, all alike and at whole bytes."""
    if piece == count:
        return True
    return is_additive(axis, piece) and all(
        stride * (max(piece, div) // div) % 8 == 0
        for div, extent, stride in axis
        if div * extent > piece
    )


def place_of(group: Group, role: Role, layer: int) -> tuple[str, int]:
    """The pool of a layer's pages, and bytes to the page in block 0."""
    return page_of(group, group.places[role.place], layer)


def page_of(group: Group, place: Place, layer: int) -> tuple[str, int]:
    """As `place_of`, for a place."""
    position = group.layers.index(layer)
    pool = place.pools[position if len(place.pools) > 1 else 0]
    return pool, place.offset + position * place.layer_stride


def side_of(group: Group, role: Role, pool: str, first_byte: int, piece: int) -> Side:
    """Where a role's pieces are."""
    axis = digits(role, "N")
    parts = range(0, group.states_per_block, piece)
    offsets = tuple(offset(axis, state) // 8 for state in parts)
    return Side(pool, first_byte, group.places[role.place].block_stride, offsets)
