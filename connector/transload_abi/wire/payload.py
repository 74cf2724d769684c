"""Which bytes a read asks for, and where they are: computed alike by both sides.

From the holder's descriptor alone, in canonical form (as `transload_abi.read` gives it), so that
nothing but block ids differs between who gathers and who scatters.

**Theory.** All blocks and layers of a group have their bytes at the same distances from where a
page starts, so they are found once: the terms of a role are nested loops over bits. Loops whose
copies touch are one run, roles whose runs touch under equal loops are one, and only what is then
left is written out.
"""

from collections.abc import Iterable, Iterator
from itertools import pairwise, product
from math import prod
from typing import Final, NamedTuple

from transload_abi.footprint import Footprint, Loops, normalize
from transload_abi.tree import quote
from transload_abi.types import Descriptor, Group, Place, Role
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Range, Read

MAX_PAGE_RUNS: Final = 1 << 18
"""Of one place of a page; finer ones are refused, as `transload_abi.limits.MAX_PIECES` does it."""


class Run(NamedTuple):
    """Bytes that follow one another, in memory and in the payload.

    Attributes:
        pool: Id of the pool.
        offset: Of the first byte, from the pool's start.
        num_bytes: How many, at least one.
    """

    pool: str
    offset: int
    num_bytes: int


_Interval = tuple[int, int]
"""First byte and end, from where a page starts."""


class Payload:
    """What a read sends of each block, in that order: layer by layer, place by place.

    Attributes:
        layers: Layer positions that are sent; of form `block` position 0, which stands for all.
        layer_bytes: Bytes of one layer of one block.
        block_bytes: Bytes of one block.
    """

    def __init__(self, layers: range, places: list[tuple[Place, list[_Interval]]]) -> None:
        self.layers = layers
        self.layer_bytes = sum(end - first for _, found in places for first, end in found)
        self.block_bytes = self.layer_bytes * len(layers)
        self._places = places

    def num_bytes(self, blocks: Iterable[Range]) -> int:
        """Of the whole payload of these ranges of blocks."""
        return self.block_bytes * sum(count for _, count in blocks)

    def runs(self, block: int, layer: int) -> list[Run]:
        """Where the bytes of a layer of a block are, in the payload's order; neighbours are one.

        Args:
            block: A block id of the holder, or any number that stands for one.
            layer: One of `layers`.
        """
        return list(_joined(self._pieces(block, layer)))

    def runs_of(self, blocks: Iterable[int]) -> Iterator[Run]:
        """Where all bytes of these blocks are; what is consecutive over layers and blocks is one.

        Args:
            blocks: As `runs` takes them, in the order of the payload.
        """
        return _joined(
            run for block in blocks for layer in self.layers for run in self._pieces(block, layer)
        )

    def _pieces(self, block: int, layer: int) -> Iterator[Run]:
        for place, intervals in self._places:
            pool = place.pools[layer if len(place.pools) > 1 else 0]
            start = place.offset + layer * place.layer_stride + block * place.block_stride
            for first, end in intervals:
                yield Run(pool, start + first, end - first)


def payload_of(holder: Descriptor, read: Read) -> Payload:
    """What a read sends; whether its blocks are there is not seen to.

    Raises:
        BadRead: The group, its layers, heads or the form are not what the holder's descriptor has.
    """
    group = next((each for each in holder.groups if each.id == read.group), None)
    if group is None:
        raise BadRead(f"the holder has no group {quote(read.group)}", "read.group")
    if not group.transferable:
        raise BadRead(f"{quote(group.id)} is not transferable", "read.group")
    if read.heads is not None and read.form != "elements":
        raise BadRead(f"form {read.form!r} has all heads", "read.heads")
    if read.form == "block":
        return _of_blocks(holder, group, read)
    layers = _layers(group, read.layers)
    if read.form == "page":
        return Payload(layers, [(place, _page(place, group)) for place in group.places])
    return Payload(layers, _elements(group, read.heads))


def _of_blocks(holder: Descriptor, group: Group, read: Read) -> Payload:
    if read.layers is not None:
        raise BadRead("form 'block' has all layers", "read.layers")
    pools = {pool for place in group.places for pool in place.pools}
    num_bytes = holder.pool(group.places[0].pools[0]).block_bytes
    if len(pools) > 1 or num_bytes == 0:
        raise BadRead(f"{quote(group.id)} has no pool with block_bytes for itself", "read.form")
    place = Place(pools=(*pools,), block_stride=num_bytes)
    return Payload(range(1), [(place, [(0, num_bytes)])])


def _layers(group: Group, asked: Range | None) -> range:
    if asked is None:
        return range(len(group.layers))
    first, count = asked
    if first + count > len(group.layers):
        raise BadRead(f"{quote(group.id)} has {len(group.layers)} layers", "read.layers")
    return range(first, first + count)


def _page(place: Place, group: Group) -> list[_Interval]:
    if place.page_bytes == 0:
        raise BadRead(f"a place of {quote(group.id)} has no page_bytes", "read.form")
    return [(0, place.page_bytes)]


def _elements(group: Group, asked: Range | None) -> list[tuple[Place, list[_Interval]]]:
    heads = None if asked is None else _heads(group, asked)
    found = []
    for number, place in enumerate(group.places):
        roles = [role for role in group.roles if role.place == number]
        intervals = _written_out(_merged(_footprints(roles, heads)), group)
        if heads is not None and any(role.bits % 8 for role in roles):
            _check_cut(intervals, roles, heads, group)
        found.append((place, intervals))
    return found


def _heads(group: Group, asked: Range) -> range:
    """Indices on the axis `H`."""
    first, end, _ = group.owner.heads
    if group.opaque or any("H" not in role.shape for role in group.roles):
        raise BadRead(f"{quote(group.id)} cannot be cut by heads", "read.heads")
    if asked[0] < first or asked[0] + asked[1] > end:
        raise BadRead(f"{quote(group.id)} holds the heads {first} to {end - 1}", "read.heads")
    return range(asked[0] - first, asked[0] - first + asked[1])


def _check_cut(wanted: list[_Interval], roles: list[Role], heads: range, group: Group) -> None:
    """No byte has elements of heads that are asked for and of others."""
    num_heads = group.num_heads
    others = [range(heads.start), range(heads.stop, num_heads)]
    rest = [each for part in others if part for each in _footprints(roles, part)]
    unwanted = _written_out(_merged(rest), group)
    ends = sorted([*wanted, *unwanted])
    if any(after[0] < before[1] for before, after in pairwise(ends)):
        raise BadRead(f"a byte of {quote(group.id)} holds other heads as well", "read.heads")


def _footprints(roles: list[Role], heads: range | None) -> list[Footprint]:
    """The bytes of roles, as base, size and strides in bytes; some perhaps more than once."""
    found = []
    for role in roles:
        for bits in _bits(role, heads):
            found += [_bytes(each) for each in _even(normalize(bits))]
    return found


def _bits(role: Role, heads: range | None) -> Iterator[Footprint]:
    """The bits of a role, of one head after the other where those asked for are no digit."""
    loops = tuple((extent, stride) for axis, _, extent, stride in role.terms if axis != "H")
    digits = [(div, extent, stride) for axis, div, extent, stride in role.terms if axis == "H"]
    if heads is None:
        every = tuple((extent, stride) for _, extent, stride in digits)
        yield Footprint(role.base_bits, role.bits, loops + every)
    elif len(digits) == 1:
        stride = digits[0][2]
        start = role.base_bits + heads.start * stride
        yield Footprint(start, role.bits, (*loops, (len(heads), stride)))
    else:
        for head in heads:
            offset = sum(head // div % extent * stride for div, extent, stride in digits)
            yield Footprint(role.base_bits + offset, role.bits, loops)


def _even(bits: Footprint) -> Iterator[Footprint]:
    """The same bits in footprints whose strides are whole bytes: of half ones, every other step."""
    for at, (count, stride) in enumerate(bits.loops):
        if stride % 8:
            for first in (0, 1):
                half = ((count + 1 - first) // 2, 2 * stride)
                loops = (*bits.loops[:at], half, *bits.loops[at + 1 :])
                yield from _even(bits._replace(base=bits.base + first * stride, loops=loops))
            return
    yield bits


def _bytes(bits: Footprint) -> Footprint:
    first = bits.base // 8
    end = -(-(bits.base + bits.size) // 8)
    loops = tuple((count, stride // 8) for count, stride in bits.loops)
    return normalize(Footprint(first, end - first, loops))


def _merged(pieces: list[Footprint]) -> list[Footprint]:
    """Fewer footprints of the same bytes: those of equal loops that touch or meet are one."""
    while True:
        merged: dict[Loops, list[Footprint]] = {}
        for piece in sorted(pieces):
            alike = merged.setdefault(piece.loops, [])
            if alike and piece.base <= alike[-1].base + alike[-1].size:
                last = alike.pop()
                end = max(last.base + last.size, piece.base + piece.size)
                piece = last._replace(size=end - last.base)
            alike.append(piece)
        fewer = [normalize(piece) for same in merged.values() for piece in same]
        if len(fewer) == len(pieces):
            return fewer
        pieces = fewer


def _written_out(pieces: list[Footprint], group: Group) -> list[_Interval]:
    """All bytes, ascending, each once."""
    num_runs = sum(prod(count for count, _ in piece.loops) for piece in pieces)
    if num_runs > MAX_PAGE_RUNS:
        raise BadRead(f"a page of {quote(group.id)} comes to {num_runs} runs", "read.form")
    found: list[_Interval] = []
    for base, size, loops in pieces:
        steps = [range(0, count * stride, stride) for count, stride in loops]
        found += [(base + sum(step), base + sum(step) + size) for step in product(*steps)]
    found.sort()
    joined: list[_Interval] = []
    for first, end in found:
        if joined and first <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((first, end))
    return joined


def _joined(runs: Iterable[Run]) -> Iterator[Run]:
    last: Run | None = None
    for run in runs:
        if last is None:
            last = run
        elif run.pool == last.pool and run.offset == last.offset + last.num_bytes:
            last = last._replace(num_bytes=last.num_bytes + run.num_bytes)
        else:
            yield last
            last = run
    if last is not None:
        yield last
