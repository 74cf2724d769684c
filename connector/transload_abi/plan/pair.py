"""Two descriptors compiled once, and the plans for requests that follow from block lists."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from transload_abi.canonical import canonical
from transload_abi.compare import Comparison, compare, match_groups
from transload_abi.compare_words import short
from transload_abi.errors import PlanError, Refused
from transload_abi.plan import pieces
from transload_abi.plan.budget import Budget
from transload_abi.plan.loops import merge
from transload_abi.plan.pieces import Blocks, Grid, Pieces, Range
from transload_abi.plan.runs import even_step
from transload_abi.plan.shares import Share, is_same_slice, share
from transload_abi.plan.strips import conversions, templates
from transload_abi.plan.types import Batch, Conversion, Plan, Side, Template
from transload_abi.plan.whole import whole_blocks
from transload_abi.types import Descriptor, Group, Kind


class Lane(NamedTuple):
    """What one batch of every plan is made from.

    Attributes:
        kind: Of the destination's groups, as far as it bears on which tokens move.
        window: Likewise.
        src: The source's pieces.
        dst: The destination's.
        templates: For each piece.
        conversions: For each piece.
    """

    kind: Kind
    window: int
    src: Grid
    dst: Grid
    templates: tuple[Template, ...]
    conversions: tuple[Conversion, ...]


class Pair:
    """A source and a destination, compiled. Immutable; serves any number of requests.

    A plan brings what this one source has. Whether that is all that the destination takes is for
    `Cover` to judge.

    Attributes:
        lanes: One for each batch of a plan.
        absent: Sentences on what the destination's groups hold and this source does not.
    """

    __slots__ = ("_shared_pools", "absent", "lanes")

    lanes: tuple[Lane, ...]
    absent: tuple[str, ...]

    def __init__(
        self,
        lanes: tuple[Lane, ...],
        shared_pools: tuple[frozenset[int], ...],
        absent: tuple[str, ...] = (),
    ) -> None:
        self.lanes = lanes
        self.absent = absent
        self._shared_pools = shared_pools

    @classmethod
    def compile(cls, src: Descriptor, dst: Descriptor, *, allow_lossy: bool = False) -> "Pair":
        """Work out all copies and conversions of one piece, for each table.

        Args:
            src: Whose blocks are read; checked.
            dst: Whose blocks are written; checked.
            allow_lossy: Whether numbers may be rounded.

        Raises:
            Refused: `compare` refuses, or finds a loss that is not allowed; or a copy would move
                less than a byte.
        """
        absent = check_verdict(src, dst, allow_lossy=allow_lossy).absent
        src, dst = canonical(src), canonical(dst)
        by_lane: dict[tuple[object, ...], list[Share]] = {}
        by_tables: dict[tuple[int, int], list[Share]] = {}
        for match in match_groups(src, dst):
            one = share(*match)
            by_lane.setdefault(_lane_key(one), []).append(one)
            by_tables.setdefault((one.dst.table, one.src.table), []).append(one)
        whole = {tables: whole_blocks(src, dst, shares) for tables, shares in by_tables.items()}
        lanes = []
        budget = Budget()
        for shares in by_lane.values():
            tables = (shares[0].dst.table, shares[0].src.table)
            is_alone = len(shares) == len(by_tables[tables])
            lanes.append(_lane(src, dst, shares, whole[tables] if is_alone else [], budget))
        return cls(tuple(lanes), _tables_by_pool(dst), absent)

    @property
    def templates(self) -> tuple[Template, ...]:
        """Of all lanes."""
        return tuple(template for lane in self.lanes for template in lane.templates)

    def plan(self, blocks: Blocks, part: tuple[int, int] = (0, 1)) -> Plan:
        """What one request moves.

        Args:
            blocks: Where it is on either side.
            part: Ordinal and number of equal shares of the destination's blocks, where several
                sources that hold the same each give one; all of them by default.

        Raises:
            PlanError: Lists or counts that do not fit; the path names the list.
        """
        return self.plan_beside({}, blocks, part)

    def plan_beside(
        self, used: dict[int, set[int]], blocks: Blocks, part: tuple[int, int] = (0, 1)
    ) -> Plan:
        """As `plan`, beside other plans for the same destination.

        Args:
            used: By table the destination's blocks that the others write; this plan's are added.
            blocks: Where the request is on either side.
            part: Ordinal and number of equal shares of the destination's blocks.

        Raises:
            PlanError: As `plan`, and where another table's block would be written.
        """
        blocks, part = pieces.checked(blocks), pieces.checked_part(part)
        batches = []
        for lane in self.lanes:
            numbers, dst_ids = _pieces(lane, blocks, part)
            if len(set(dst_ids)) != len(dst_ids):
                raise PlanError("a block is given twice", f"blocks.dst[{lane.dst.table}]")
            used.setdefault(lane.dst.table, set()).update(dst_ids)
            found = pieces.sequences(lane.src, lane.dst, numbers)
            batches.append(
                Batch(
                    lane.dst.table,
                    lane.templates,
                    lane.conversions,
                    lane.src.parts,
                    lane.dst.parts,
                    found,
                )
            )
        self._check_tables(used)
        return Plan(tuple(batches))

    def _check_tables(self, used: dict[int, set[int]]) -> None:
        for tables in self._shared_pools:
            seen: set[int] = set()
            for table in sorted(tables & used.keys()):
                both = seen & used[table]
                if both:
                    raise PlanError(
                        f"block {min(both)} is in another table's list, too",
                        f"blocks.dst[{table}]",
                    )
                seen |= used[table]


def check_verdict(src: Descriptor, dst: Descriptor, *, allow_lossy: bool) -> Comparison:
    """Refuse what `compare` refuses, and losses unless they are allowed."""
    compared = compare(src, dst)
    for finding in compared.findings:
        between = " to ".join(short(name) for name in (finding.src, finding.dst) if name)
        if finding.verdict == "refused":
            raise Refused(f"{between}: {finding.reason}", finding.path)
        if finding.verdict == "lossy" and not allow_lossy:
            raise Refused(f"{between}: {finding.reason}; losses are not allowed here", finding.path)
    return compared


def _reach(group: Group) -> tuple[Kind, int]:
    """Kind and window as far as they bear on which tokens move."""
    if group.kind in ("full", "mla", "ring"):
        return ("ring" if group.kind == "ring" else "full"), 0
    return group.kind, group.window


def _lane_key(one: Share) -> tuple[object, ...]:
    sides = (
        (group.table, group.tokens_per_block, group.owner.tokens, group.null_block)
        for group in (one.src, one.dst)
    )
    return (one.src_parts, one.dst_parts, *sides, _reach(one.dst))


def _lane(
    src: Descriptor,
    dst: Descriptor,
    shares: Sequence[Share],
    whole: Sequence[Template],
    budget: Budget,
) -> Lane:
    pools = {(each.src.pool, each.dst.pool) for each in whole}
    copied = [
        template
        for each in shares
        for template in templates(each, budget)
        if (template.src.pool, template.dst.pool) not in pools
    ]
    merged = merge([*copied, *whole])
    converted = tuple(each for one in shares for each in conversions(one, budget))
    kind, window = _reach(shares[0].dst)
    src_sides = [
        *(each.src for each in merged),
        *(operand.side for each in converted for operand in each.src),
    ]
    dst_sides = [
        *(each.dst for each in merged),
        *(operand.side for each in converted for operand in each.dst),
    ]
    first = shares[0]
    return Lane(
        kind,
        window,
        _grid("src", src, first.src, first.src_parts, src_sides),
        _grid("dst", dst, first.dst, first.dst_parts, dst_sides),
        merged,
        converted,
    )


def _grid(name: str, d: Descriptor, group: Group, parts: int, sides: Iterable[Side]) -> Grid:
    sides = list(sides)
    pools = {side.pool for side in sides}
    return Grid(
        side=name,
        table=group.table,
        tokens_per_block=group.tokens_per_block,
        parts=parts,
        tokens=group.owner.tokens,
        null_block=group.null_block,
        num_blocks=min(pool.num_blocks for pool in d.pools if pool.id in pools),
        is_cut=parts > 1 and not all(even_step(side) for side in sides),
    )


def _tables_by_pool(d: Descriptor) -> tuple[frozenset[int], ...]:
    """Sets of tables that share a pool, and so its block ids."""
    tables: dict[str, set[int]] = {}
    for group in d.groups:
        for pool in {pool for place in group.places for pool in place.pools}:
            tables.setdefault(pool, set()).add(group.table)
    return tuple({frozenset(each) for each in tables.values() if len(each) > 1})


def _pieces(lane: Lane, blocks: Blocks, part: tuple[int, int]) -> tuple[Pieces, list[int]]:
    """The pieces that a lane moves, and the destination's blocks among which they all are."""
    tokens = pieces.tokens_of(lane.kind, lane.window, blocks)
    src_ids, dst_ids = pieces.ids_of(lane.src, blocks), pieces.ids_of(lane.dst, blocks)
    pieces.check_ids(lane.src, src_ids)
    pieces.check_ids(lane.dst, dst_ids)
    if lane.kind in pieces.ONE_BLOCK:
        numbers = _last_block(lane, src_ids, dst_ids, tokens)
        # One block is nobody's share but the last one's.
        return numbers if part[0] + 1 == part[1] else ([], []), numbers[1]
    pieces.check_first(lane.dst, tokens.first)
    missing = (
        pieces.check_length(lane.src, src_ids, tokens.end),
        pieces.check_length(lane.dst, dst_ids, tokens.end),
    )
    share_of = pieces.part_of(lane.dst, tokens, part)
    slices = lane.src.tokens, lane.dst.tokens
    if is_same_slice(*slices):
        local = Range(*(pieces.local_tokens(slices[1], count) for count in share_of))
        numbers = pieces.even_pieces(lane.src, lane.dst, (src_ids, dst_ids), missing, local)
    else:
        numbers = pieces.uneven_pieces(lane.src, lane.dst, (src_ids, dst_ids), missing, share_of)
    begin = pieces.num_list_blocks(lane.dst, tokens.first) - missing[1]
    wanted = dst_ids[max(begin, 0) :]
    if lane.dst.null_block in wanted:
        wanted = [one for one in wanted if one != lane.dst.null_block]
    return numbers, wanted


def _last_block(lane: Lane, src_ids: list[int], dst_ids: list[int], tokens: Range) -> Pieces:
    assert lane.src.parts == lane.dst.parts == 1, "one block is not cut"
    if tokens.first == tokens.end:
        return [], []
    for grid, ids in ((lane.src, src_ids), (lane.dst, dst_ids)):
        path = f"blocks.{grid.side}[{grid.table}]"
        most = 1 if lane.kind == "ring" else pieces.num_list_blocks(grid, tokens.end)
        if not 1 <= len(ids) <= most:
            raise PlanError(f"1 to {most} blocks were expected, {len(ids)} came", path)
        if grid.side == "src" and ids[-1] == grid.null_block:
            raise PlanError("the last block is the null block", path)
    if dst_ids[-1] == lane.dst.null_block:
        return [], []
    return [src_ids[-1]], [dst_ids[-1]]
