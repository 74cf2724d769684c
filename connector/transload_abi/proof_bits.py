"""Which bits a descriptor's elements lie in, one by one: what a proof compares a plan with.

Everything is enumerated from the descriptor's terms. Nothing here is shared with the planner.
"""

from itertools import product
from math import gcd
from typing import Final, NamedTuple

from transload_abi.codecs import CODECS, scale_param
from transload_abi.errors import LimitExceeded
from transload_abi.floats import read_float
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Role

MAX_STRIPS: Final = 1 << 20
"""Into how many stretches a proof may cut one piece: about two seconds of work."""


class Home(NamedTuple):
    """What a stretch of bits is counted from: a pool, and the bytes from its block to the next."""

    pool: str
    block_stride: int


class Strip(NamedTuple):
    """Bits that lie together on both sides, counted in block 0.

    Attributes:
        first: First bit on the destination.
        end: After the last.
        shift: Bits from the destination's to the source's; 0 where numbers are converted.
        src: What the source's are counted from; None where numbers are converted.
    """

    first: int
    end: int
    shift: int
    src: Home | None


Strips = dict[Home, list[Strip]]
"""By what the destination's bits are counted from."""


class Bundle(NamedTuple):
    """A group of the destination and one of the source that has some of its layers."""

    src: Group
    dst: Group
    layers: tuple[int, ...]

    @property
    def heads(self) -> range:
        """What both hold, of the model's heads."""
        ours, theirs = self.src.owner.heads, self.dst.owner.heads
        return range(max(ours[0], theirs[0]), min(ours[1], theirs[1]))

    @property
    def name(self) -> str:
        """For messages."""
        return f"{self.src.id} to {self.dst.id}"


def bundles(src: Descriptor, dst: Descriptor) -> list[Bundle]:
    """All pairs of groups between which a whole plan moves something."""
    found = []
    for theirs, ours in product(dst.groups, src.groups):
        layers = tuple(layer for layer in theirs.layers if layer in ours.layers)
        is_alike = not _contents(ours).isdisjoint(_contents(theirs))
        if ours.transferable and theirs.transferable and layers and is_alike:
            bundle = Bundle(ours, theirs, layers)
            if len(bundle.heads) and _have_common_token(ours, theirs):
                found.append(bundle)
    return found


_SORTS: Final = ("cross", "recurrent", "ring", "sliding_window_mla")
"""Kinds that have a layer's roles apart from its attention."""


def _contents(group: Group) -> set[tuple[str, str, str]]:
    """What a layer has once: roles, by what sort of thing has them and who writes their pages."""
    sort = group.kind if group.kind in _SORTS else "attention"
    return {(sort, role.role, group.opaque if role.role == "page" else "") for role in group.roles}


def _have_common_token(src: Group, dst: Group) -> bool:
    """Whether a stretch of one rank's tokens ever meets one of the other's."""
    ours, theirs = src.owner.tokens, dst.owner.tokens
    step = gcd(ours.interleave * ours.size, theirs.interleave * theirs.size)
    behind = (theirs.rank * theirs.interleave - ours.rank * ours.interleave) % step
    return behind < ours.interleave or step - behind < theirs.interleave


class Elements(NamedTuple):
    """Where the elements of one role are, for one layer in block 0.

    Attributes:
        home: What bits are counted from.
        base: Bits to index 0.
        axes: For each axis of the role, bits from index 0 to every index.
        bits: Of an element.
    """

    home: Home
    base: int
    axes: dict[str, list[int]]
    bits: int


def elements(group: Group, role: Role, layer: int) -> Elements:
    """Enumerate a role of one layer."""
    place = group.places[role.place]
    position = group.layers.index(layer)
    pool = place.pools[position] if len(place.pools) > 1 else place.pools[0]
    base = 8 * (place.offset + position * place.layer_stride) + role.base_bits
    axes = {axis: _steps(role, axis) for axis in ROLES[role.role].axes}
    return Elements(Home(pool, place.block_stride), base, axes, role.bits)


def _steps(role: Role, axis: str) -> list[int]:
    """Bits from index 0 to every index of an axis."""
    steps = [0] * role.shape[axis]
    for name, div, extent, stride in role.terms:
        if name == axis:
            steps = [step + i // div % extent * stride for i, step in enumerate(steps)]
    return steps


def expected(bundle: Bundle, src_first: int, dst_first: int, states: int) -> Strips:
    """Where every bit of a piece must go to, and where it must come from.

    Args:
        bundle: What moves.
        src_first: First state of the piece in the source's block.
        dst_first: First state of the piece in the destination's block.
        states: Of the piece.

    Raises:
        LimitExceeded: There are too many stretches.
    """
    found: Strips = {}
    num_strips = 0
    for theirs, layer in product(bundle.dst.roles, bundle.layers):
        into = elements(bundle.dst, theirs, layer)
        ours = bundle.src.role(theirs.role)
        source = None
        if ours is not None and is_unchanged(bundle, ours, theirs, layer):
            source = elements(bundle.src, ours, layer)
        spots = _spots(bundle, into, source, (src_first, dst_first, states))
        num_strips += len(spots)
        if num_strips > MAX_STRIPS:
            raise LimitExceeded(f"{bundle.name}: more than {MAX_STRIPS} stretches in a piece")
        found.setdefault(into.home, []).extend(spots)
    return found


def _spots(
    bundle: Bundle, into: Elements, source: Elements | None, piece: tuple[int, int, int]
) -> list[Strip]:
    src_first, dst_first, states = piece
    rows = []
    for name, offsets in into.axes.items():
        ours = source.axes[name] if source else offsets
        if name == "H":
            src_start, dst_start, count = (
                bundle.heads[0] - bundle.src.owner.heads[0] if source else 0,
                bundle.heads[0] - bundle.dst.owner.heads[0],
                len(bundle.heads),
            )
        elif name == "N":
            src_start, dst_start, count = src_first if source else 0, dst_first, states
        else:
            src_start, dst_start, count = 0, 0, len(offsets)
        here = offsets[dst_start : dst_start + count]
        there = ours[src_start : src_start + count] if source else here
        rows.append(list(zip(here, there, strict=True)))
    bits = into.bits
    last = rows[-1]
    if all(here == there == bits * i for i, (here, there) in enumerate(last)):
        rows[-1], bits = [(0, 0)], bits * len(last)
    spots = [(into.base, source.base if source else 0)]
    for row in rows:
        spots = [(first + here, src + there) for first, src in spots for here, there in row]
        if len(spots) > MAX_STRIPS:
            raise LimitExceeded(f"{bundle.name}: more than {MAX_STRIPS} stretches in a piece")
    if source is None:
        return [Strip(first, first + bits, 0, None) for first, _ in spots]
    return [Strip(first, first + bits, src - first, source.home) for first, src in spots]


def is_unchanged(bundle: Bundle, ours: Role, theirs: Role, layer: int) -> bool:
    """Whether equal bits mean equal numbers for a role of one layer."""
    if ours.dtype != theirs.dtype:
        return False
    value = theirs.role
    for group in (bundle.src, bundle.dst):
        scales = CODECS[group.codec.id].scale_role
        value = next((name for name, scale in scales.items() if scale == theirs.role), value)
    means = [_meaning(group, value, layer) for group in (bundle.src, bundle.dst)]
    return means[0] == means[1]


def _meaning(group: Group, value: str, layer: int) -> tuple[object, ...]:
    """Dtype, inline scales and outside scale of a value role in one layer."""
    role = group.role(value)
    scales = group.role(CODECS[group.codec.id].scale_role.get(value, ""))
    inline = (group.codec.id, scales.dtype, scales.shape.get("G")) if scales else ()
    scale = outside_scale(group, value, layer)
    return role and role.dtype, inline, None if scale is None else read_float(scale)


def outside_scale(group: Group, value: str, layer: int) -> str | None:
    """The text of a layer's scale, where the codec's parameters have one."""
    texts = group.codec.params.get(scale_param(value))
    return str(texts[group.layers.index(layer)]) if isinstance(texts, list) else None
