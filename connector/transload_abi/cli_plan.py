"""What `transload abi plan` prints: what a transport would have to move for one request."""

from collections import Counter
from collections.abc import Iterator
from math import gcd
from typing import Final, NamedTuple

from transload_abi.errors import PlanError
from transload_abi.plan import (
    Batch,
    Blocks,
    Copy,
    Pair,
    Plan,
    copies,
    num_bytes,
    num_runs,
    run_lengths,
)
from transload_abi.plan.pieces import Grid, num_list_blocks
from transload_abi.plan.regions import regions
from transload_abi.types import Descriptor, Kind

MAX_LISTED_BLOCKS: Final = 1 << 20
"""In a list given as text: a request of 16 million tokens in blocks of 16."""

_MAX_LENGTHS: Final = 12
_MAX_REGIONS: Final = 6
_MAX_ABSENT: Final = 16
"""So many are told one by one."""


class Request(NamedTuple):
    """What to plan; lists of block ids by table, or None for scattered ones."""

    num_tokens: int
    first_token: int = 0
    src_blocks: dict[int, list[int]] | None = None
    dst_blocks: dict[int, list[int]] | None = None


def plan_text(
    src: Descriptor, dst: Descriptor, request: Request, *, allow_lossy: bool, has_runs: bool
) -> str:
    """The whole text.

    Args:
        src: Checked.
        dst: Checked.
        request: What to move.
        allow_lossy: As in `Pair.compile`.
        has_runs: List all copies as well.

    Raises:
        Refused: The two do not convert.
        PlanError: The request does not fit them.
    """
    pair = Pair.compile(src, dst, allow_lossy=allow_lossy)
    src_lanes = [(lane.kind, lane.src) for lane in pair.lanes]
    dst_lanes = [(lane.kind, lane.dst) for lane in pair.lanes]
    num_tokens = request.num_tokens
    blocks = Blocks(
        request.src_blocks or _scattered_lists(src, src_lanes, num_tokens),
        request.dst_blocks or _scattered_lists(dst, dst_lanes, num_tokens),
        num_tokens,
        request.first_token,
    )
    plan = pair.plan(blocks)
    lines = [
        *_summary(plan, request),
        *_absent(pair),
        "",
        *_regions("source", src),
        *_regions("destination", dst),
    ]
    if has_runs:
        listed = [*map(_copy_words, copies(plan)), *_conversion_lines(plan)]
        lines += ["", *listed] if listed else []
    return "\n".join(lines) + "\n"


# --- block lists


def read_blocks(texts: list[str], option: str) -> dict[int, list[int]] | None:
    """Lists of block ids by table: `3,4,9-20`, or `2=3,4` for table 2 alone; None: no text.

    Args:
        texts: As given, one for each time the option was.
        option: Its name, for messages.

    Raises:
        PlanError: A text is none of these, or too long.
    """
    found: dict[int, list[int]] = {}
    for text in texts:
        table, has_table, ids = text.rpartition("=")
        number = _number(table, option) if has_table else 0
        if number in found:
            raise PlanError(f"{option}: table {number} is given twice")
        found[number] = _ids(ids, option)
    return found or None


def _ids(text: str, option: str) -> list[int]:
    found: list[int] = []
    for part in text.split(","):
        first, is_range, last = part.partition("-")
        begin = _number(first, option)
        end = _number(last, option) if is_range else begin
        if not 0 <= end - begin < MAX_LISTED_BLOCKS - len(found):
            raise PlanError(f"{option}: {part} is backwards, or the list is too long")
        found.extend(range(begin, end + 1))
    return found


def _number(text: str, option: str) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) < 16):
        raise PlanError(f"{option}: expected block ids as 3,4,9-20, got {text[:40]!r}")
    return int(text)


def _scattered_lists(
    d: Descriptor, lanes: list[tuple[Kind, Grid]], num_tokens: int
) -> dict[int, list[int]]:
    """A list for each table, none of which names a block of another table in the same pool."""
    found: dict[int, list[int]] = {}
    for kind, grid in lanes:
        if grid.table in found:
            continue
        pools = _pools(d, grid.table)
        taken = sum(len(ids) for table, ids in found.items() if pools & _pools(d, table))
        count = 1 if kind == "ring" else num_list_blocks(grid, num_tokens)
        found[grid.table] = _scattered(grid, count, taken)
    return found


def _pools(d: Descriptor, table: int) -> set[str]:
    return {
        pool
        for group in d.groups
        if group.table == table
        for place in group.places
        for pool in place.pools
    }


def _scattered(grid: Grid, count: int, taken: int) -> list[int]:
    """Block ids no two of which are neighbours, as far as the pool allows."""
    usable = grid.num_blocks - (grid.null_block is not None)
    if taken + count > min(usable, MAX_LISTED_BLOCKS):
        path = f"blocks.{grid.side}[{grid.table}]"
        raise PlanError(f"{taken + count} blocks are needed, the pool has {usable}", path)
    step = max(1, usable * 5 // 8)
    while gcd(step, usable) > 1:
        step += 1
    numbers = (at * step % usable for at in range(taken, taken + count))
    null = usable if grid.null_block is None else grid.null_block
    return [number + (number >= null) for number in numbers]


# --- what is printed


def _summary(plan: Plan, request: Request) -> Iterator[str]:
    yield f"tokens       {request.first_token} to {request.num_tokens}"
    for batch in plan.batches:
        yield f"table {batch.table:<6} {_pieces_words(batch)}"
    lengths = run_lengths(plan)
    yield f"copies       {num_bytes(plan):,} bytes in {_counted(num_runs(plan), 'run')}"
    yield from _length_words(lengths)
    converted = sum(len(batch.conversions) * _num_pieces(batch) for batch in plan.batches)
    if converted:
        yield f"conversions  {converted:,}, each a role of a layer of a piece"


def _absent(pair: Pair) -> Iterator[str]:
    if pair.absent:
        yield ""
        yield "other sources have to bring what this one lacks"
        yield from (f"             {words}" for words in pair.absent[:_MAX_ABSENT])
    if len(pair.absent) > _MAX_ABSENT:
        yield f"             and {len(pair.absent) - _MAX_ABSENT:,} more"


def _length_words(lengths: Counter[int]) -> Iterator[str]:
    told = sorted(lengths.items(), reverse=True)
    for length, count in told[:_MAX_LENGTHS]:
        yield f"             {count:,} x {length:,} bytes"
    rest = sum(count for _, count in told[_MAX_LENGTHS:])
    if rest:
        yield f"             {rest:,} shorter ones"


def _num_pieces(batch: Batch) -> int:
    return sum(sequence.num_pieces for sequence in batch.sequences)


def _pieces_words(batch: Batch) -> str:
    count = _num_pieces(batch)
    parts = {1: "a block"}
    src, dst = (
        parts.get(number, f"1/{number} of a block") for number in (batch.src_parts, batch.dst_parts)
    )
    unit = src if src == dst else f"{src} at the source, {dst} at the destination"
    told = f"{_counted(count, 'piece')} ({unit}) in "
    told += _counted(len(batch.sequences), "sequence")
    num_copies = len(batch.templates)
    return f"{told}, {num_copies:,} {'copy' if num_copies == 1 else 'copies'} of each"


def _regions(side: str, d: Descriptor) -> Iterator[str]:
    found = regions(d)
    yield f"register at the {side}: {_counted(len(found), 'region')}"
    for region in found[:_MAX_REGIONS]:
        end = region.offset + region.num_bytes
        yield f"             {region.pool}: bytes {region.offset:,} to {end:,}"
    if len(found) > _MAX_REGIONS:
        yield f"             and {len(found) - _MAX_REGIONS:,} more"


def _copy_words(copy: Copy) -> str:
    loops = "".join(f" x {count} (+{src}, +{dst})" for count, src, dst in copy.loops)
    return f"{copy.src_pool}+{copy.src} -> {copy.dst_pool}+{copy.dst}: {copy.run_bytes}{loops}"


def _conversion_lines(plan: Plan) -> Iterator[str]:
    for batch in plan.batches:
        pieces = _counted(_num_pieces(batch), "piece")
        for each in batch.conversions:
            src, dst = (
                f"{operands[0].dtype} ({codec})"
                for operands, codec in ((each.src, each.src_codec), (each.dst, each.dst_codec))
            )
            yield f"convert {each.role} of layer {each.layer}: {src} -> {dst}, {pieces}"


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}" + ("" if count == 1 else "s")
