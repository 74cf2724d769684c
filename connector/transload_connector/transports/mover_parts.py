"""Which reads bring what a destination takes from one source, compiled once for all requests.

A part is one read of every request: a group's layers and heads in one form, and the copies and
conversions that make blocks of its bytes. Knows nothing of block lists.
"""

from collections.abc import Iterator, Sequence
from itertools import chain, product
from math import prod
from typing import Final, NamedTuple

from msgspec.structs import replace

from transload_abi.compare import Match, match_groups
from transload_abi.errors import DescriptorError, Refused
from transload_abi.limits import MAX_BLOCKS, MAX_INTEGER
from transload_abi.plan import Pair, Template
from transload_abi.plan.narrow import Take, narrowed
from transload_abi.types import Descriptor, Group
from transload_abi.wire.errors import BadRead
from transload_abi.wire.messages import Range, Read
from transload_abi.wire.payload import payload_of
from transload_connector.transports.kernel_calls_convert import Family, families
from transload_connector.transports.kernel_calls_scratch import check_scratch
from transload_connector.transports.staging import staged

CHUNK_BYTES: Final = 1 << 22
"""Of a payload, so that one is received while the one before becomes blocks. One thread of an AMD
EPYC, 16 layers of 8 heads of 128: NHD to HND 11 GB/s with chunks of 1 MiB, 17 with 4 and 20 with
16; bf16 to f32 1.8, 4.0 and 1.6, since what is converted has to stay in the cache."""

MIN_SINK_BYTES: Final = 1 << 12
"""Of runs that are received straight into a block, on the average: shorter ones cost more in system
calls than it costs to copy them."""

MAX_PADS: Final = 8
"""Pads are received with a page only where they are at most one part in so many of its elements."""

_MAX_POOL_BYTES: Final = MAX_INTEGER // 8
"""What a descriptor's pool may have (`connector/ABI.md`): the address of a bit is a number."""


class Sink(NamedTuple):
    """Bytes of a block's payload that are a run of a destination's block.

    Attributes:
        payload: The first one's offset in the block's payload.
        pool: The destination's.
        offset: Of the first byte for block 0.
        block_stride: Bytes from block to block.
        num_bytes: How many.
    """

    payload: int
    pool: str
    offset: int
    block_stride: int
    num_bytes: int


class Part(NamedTuple):
    """One read of every request.

    Attributes:
        source: Number of the source.
        read: What is asked for, blocks apart.
        table: Of the source.
        block_bytes: Of the payload, for each block.
        null_block: What stands in a list of positions for those that hold nothing.
        pair: From the payload to the destination.
        sinks: Where the bytes of a block's payload are received, in their order; empty where they
            are staged.
        by_lane: Of each lane of the pair the families of its conversions.
    """

    source: int
    read: Read
    table: int
    block_bytes: int
    null_block: int
    pair: Pair
    sinks: tuple[Sink, ...]
    by_lane: tuple[tuple[Family, ...], ...]


def parts_of(
    number: int,
    source: Descriptor,
    taken: Descriptor,
    dst: Descriptor,
    *,
    allows_lossy: bool,
    chunk_bytes: int,
) -> list[Part]:
    """The reads that bring what is taken from a source.

    Args:
        number: Of the source.
        source: The holder's whole descriptor, canonical.
        taken: The part of it that `Cover` takes.
        dst: The destination's, canonical.
        allows_lossy: Whether numbers may be rounded.
        chunk_bytes: Of a payload, unless one layer of one block is longer.

    Raises:
        Refused: Some bytes cannot be asked for in any form that makes blocks of them.
    """
    compiler = _Compiler(number, source, dst, allows_lossy, chunk_bytes)
    found: list[Part] = []
    brought: list[Read] = []
    for asked in _asked(source, taken, dst):
        if not any(_brings(source, read, asked.read) for read in brought):
            parts = compiler.parts(asked, is_whole=taken is source)
            brought += [part.read for part in parts if part.read.form == "block" and part.sinks]
            found += parts
    return found


def _brings(source: Descriptor, read: Read, asked: Read) -> bool:
    """Whether a read of whole blocks brings another group, too."""
    groups = {group.id: group for group in source.groups}
    return _is_beside(groups[read.group], groups[asked.group])


def _is_beside(group: Group, other: Group) -> bool:
    """Whether two groups share table and pools."""
    pools = [{pool for place in each.places for pool in place.pools} for each in (group, other)]
    return group.table == other.table and pools[0] == pools[1]


# --- what is asked for


class _Asked(NamedTuple):
    """A read of elements, and the heads that are taken, which it may be unable to cut."""

    read: Read
    heads: tuple[int, int]


def _asked(source: Descriptor, taken: Descriptor, dst: Descriptor) -> Iterator[_Asked]:
    """Layers and heads that are taken, of one group of the source and for one table each."""
    by_table: dict[tuple[str, int], list[Match]] = {}
    for match in match_groups(taken, dst):
        by_table.setdefault((match.src.id, match.dst.table), []).append(match)
    for matches in by_table.values():
        group = _original(source, taken, matches[0].src)
        layers = {layer for match in matches for layer in match.layers}
        positions = [at for at, layer in enumerate(group.layers) if layer in layers]
        heads = _heads(matches)
        is_cut = _has_heads(group) and heads != group.owner.heads[:2]
        for first, count in _ranges(positions):
            read = Read(
                id=1,
                handoff="",
                group=group.id,
                blocks=(),
                layers=None if count == len(group.layers) else (first, count),
                heads=(heads[0], heads[1] - heads[0]) if is_cut else None,
            )
            yield _Asked(read, heads)


def _original(source: Descriptor, taken: Descriptor, group: Group) -> Group:
    """The source's group of which a taken one is a part."""
    if taken is source:
        return group
    # `plan.narrow` numbers the parts of a group behind its id.
    name = group.id.rpartition("/")[0]
    return next(each for each in source.groups if each.id == name)


def _ranges(positions: Sequence[int]) -> Iterator[Range]:
    begin = 0
    for at in range(1, len(positions) + 1):
        if at == len(positions) or positions[at] != positions[at - 1] + 1:
            yield positions[begin], at - begin
            begin = at


def _heads(matches: Sequence[Match]) -> tuple[int, int]:
    """The first head that is taken, and the one behind the last."""
    both = [(match.src.owner.heads, match.dst.owner.heads) for match in matches]
    return (
        min(max(ours[0], theirs[0]) for ours, theirs in both),
        max(min(ours[1], theirs[1]) for ours, theirs in both),
    )


def _has_heads(group: Group) -> bool:
    """Whether its bytes can be asked for by heads."""
    return not group.opaque and all("H" in role.shape for role in group.roles)


# --- forms


class _Compiler:
    """Makes parts of one source."""

    def __init__(
        self,
        number: int,
        source: Descriptor,
        dst: Descriptor,
        allows_lossy: bool,
        chunk_bytes: int,
    ) -> None:
        self._number = number
        self._source = source
        self._dst = dst
        self._allows_lossy = allows_lossy
        self._chunk_bytes = chunk_bytes

    def parts(self, asked: _Asked, *, is_whole: bool) -> list[Part]:
        """One part, or several of fewer layers where a block's payload would be a long chunk.

        Args:
            asked: What is taken.
            is_whole: Whether all that the source has for the destination is.

        Raises:
            Refused: There is none in any form; the first form's reason.
        """
        reasons: list[Refused] = []
        for read, only_direct in self._forms(asked.read, is_whole=is_whole):
            try:
                part = self._part(read, asked.heads)
                if part.sinks or not only_direct:
                    return self._in_chunks(part, asked.heads)
            except (BadRead, DescriptorError) as error:
                reasons.append(Refused(str(error)))
            except Refused as error:
                reasons.append(error)
        raise reasons[0]

    def _forms(self, asked: Read, *, is_whole: bool) -> Iterator[tuple[Read, bool]]:
        """The reads to try, best first, and whether one will do only if it is direct."""
        uncut = replace(asked, heads=None)
        by_page, by_block = replace(uncut, form="page"), replace(uncut, form="block")
        if asked.heads is None:
            if asked.layers is None and is_whole and self._has_few_pads(by_block):
                yield by_block, True
            if self._has_few_pads(by_page):
                yield by_page, True
        yield asked, False
        if asked.heads is not None:
            yield uncut, False
        yield by_page, False
        if asked.layers is None:
            yield by_block, False

    def _has_few_pads(self, read: Read) -> bool:
        """Whether the form can be asked for, and sends little beside elements."""
        group = next(each for each in self._source.groups if each.id == read.group)
        sent = [group]
        if read.form == "block":
            sent = [each for each in self._source.groups if _is_beside(group, each)]
        reads = [replace(read, group=each.id, form="elements") for each in sent]
        try:
            elements = sum(payload_of(self._source, each).block_bytes for each in reads)
            padded = payload_of(self._source, read).block_bytes
        except BadRead:
            return False
        return padded - elements <= elements // MAX_PADS

    def _part(self, read: Read, heads: tuple[int, int]) -> Part:
        payload = payload_of(self._source, read)
        num_blocks = min(MAX_BLOCKS, _MAX_POOL_BYTES // payload.block_bytes)
        null_block = num_blocks - 1
        made = staged(self._source, read, num_blocks)
        if any(_has_heads(group) and group.owner.heads[:2] != heads for group in made.groups):
            made = narrowed(made, [Take(group, group.layers, heads) for group in made.groups])
        groups = tuple(replace(group, null_block=null_block) for group in made.groups)
        made = replace(made, groups=groups)
        pair = Pair.compile(made, self._dst, allow_lossy=self._allows_lossy)
        by_lane = tuple(families(lane.conversions) for lane in pair.lanes)
        for family in chain(*by_lane):
            if family.route.way != "kernel":
                check_scratch(family.first)
        sinks = _sinks(pair, payload.block_bytes)
        return Part(
            self._number,
            read,
            groups[0].table,
            payload.block_bytes,
            null_block,
            pair,
            sinks,
            by_lane,
        )

    def _in_chunks(self, part: Part, heads: tuple[int, int]) -> list[Part]:
        """The part, cut by layers where one block of it is longer than a chunk."""
        read = part.read
        layers = payload_of(self._source, read).layers
        if part.sinks or read.form == "block" or part.block_bytes <= self._chunk_bytes:
            return [part]
        each = max(1, self._chunk_bytes // (part.block_bytes // len(layers)))
        if each >= len(layers):
            return [part]
        return [
            self._part(replace(read, layers=(first, min(each, layers.stop - first))), heads)
            for first in range(layers.start, layers.stop, each)
        ]


# --- direct


def _sinks(pair: Pair, block_bytes: int) -> tuple[Sink, ...]:
    """Runs of the destination's blocks that are a block's payload; none if that has other parts."""
    if len(pair.lanes) != 1 or not pair.lanes[0].src.parts == pair.lanes[0].dst.parts == 1:
        return ()
    (lane,) = pair.lanes
    num_runs = sum(prod(loop[0] for loop in each.loops) for each in lane.templates)
    if num_runs * MIN_SINK_BYTES > block_bytes:
        return ()
    # No byte is copied twice, so those of all runs are the payload where they are as many.
    found = sorted(sink for template in lane.templates for sink in _runs(template))
    is_all = sum(sink.num_bytes for sink in found) == block_bytes
    return tuple(_joined(found)) if is_all else ()


def _runs(template: Template) -> Iterator[Sink]:
    for turn in product(*(range(count) for count, _, _ in template.loops)):
        steps = list(zip(turn, template.loops, strict=True))
        yield Sink(
            template.src.offset + sum(at * loop[1] for at, loop in steps),
            template.dst.pool,
            template.dst.offset + sum(at * loop[2] for at, loop in steps),
            template.dst.block_stride,
            template.run_bytes,
        )


def _joined(sinks: Sequence[Sink]) -> Iterator[Sink]:
    last = sinks[0]
    for sink in sinks[1:]:
        end = last.offset + last.num_bytes
        if (sink.pool, sink.offset, sink.block_stride) == (last.pool, end, last.block_stride):
            last = last._replace(num_bytes=last.num_bytes + sink.num_bytes)
        else:
            yield last
            last = sink
    yield last
