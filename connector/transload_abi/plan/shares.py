"""What two groups have in common, and how large the pieces are in which it moves."""

from collections.abc import Iterable, Iterator
from math import gcd
from typing import Final, NamedTuple

from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.plan.axes import Digits, digits, is_additive, offset
from transload_abi.plan.types import Side
from transload_abi.roles import ROLES
from transload_abi.types import Group, Role, TokenSlice

MAX_PARTS: Final = 1 << 12
"""Pieces in a block. The largest blocks of engines have 1,024 tokens."""


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
        Refused: No piece begins at a whole byte, there would be too many in a block, or something
            would be cut of which nobody says how.
    """
    ours, theirs = src.owner.heads, dst.owner.heads
    heads = (max(ours[0], theirs[0]), min(ours[1], theirs[1]))
    one = Share(src, dst, layers, heads, _piece(src, dst))
    if not one.is_whole and any("N" not in ROLES[role.role].axes for role in dst.roles):
        raise Refused(
            f"pages whose inside nobody describes move whole ({short(src.id)} to {short(dst.id)})"
        )
    if max(one.src_parts, one.dst_parts) > MAX_PARTS:
        raise Refused(
            f"blocks of {src.tokens_per_block} and {dst.tokens_per_block} tokens would be cut into "
            f"more than {MAX_PARTS} pieces ({short(src.id)} to {short(dst.id)})"
        )
    return one


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
        f"inside of a byte ({short(src.id)} to {short(dst.id)})"
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


def pages(group: Group, role: Role, layers: Iterable[int]) -> Iterator[tuple[str, int]]:
    """For each layer the pool of a role's pages, and bytes to the page in block 0."""
    place = group.places[role.place]
    positions = {layer: position for position, layer in enumerate(group.layers)}
    for layer in layers:
        position = positions[layer]
        pool = place.pools[position if len(place.pools) > 1 else 0]
        yield pool, place.offset + position * place.layer_stride


def side_of(group: Group, role: Role, piece: int) -> Side:
    """How a role's pieces follow each other; the pool and the first byte are left open."""
    axis = digits(role, "N")
    parts = range(0, group.states_per_block, piece)
    offsets = tuple(offset(axis, state) // 8 for state in parts)
    return Side("", 0, group.places[role.place].block_stride, offsets)
