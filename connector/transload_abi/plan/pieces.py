"""From block lists to sequences of pieces. The work is in proportion to the pieces asked for."""

from collections import abc
from collections.abc import Mapping
from operator import index
from typing import NamedTuple, SupportsIndex

from transload_abi.errors import PlanError
from transload_abi.limits import MAX_INTEGER, MAX_QUOTED_CHARS
from transload_abi.plan.types import Sequence
from transload_abi.types import Kind, TokenSlice

ONE_BLOCK: frozenset[Kind] = frozenset({"recurrent", "ring"})
"""Kinds of which a request's last block is all that a query needs."""


class Blocks(NamedTuple):
    """Which blocks hold a request.

    Lists are aligned at their tail: the last entry is the block that holds the last token below
    `num_tokens` (of context-parallel ranks that share a table: the last of any rank). They may
    begin late where nobody reads what is before.

    Attributes:
        src: Block ids by table of the source.
        dst: Block ids by table of the destination.
        num_tokens: Of the request.
        first_token: The first that the destination wants; begins one of its blocks.
        num_encoder_tokens: What groups of kind `cross` count instead, from 0; None: they count as
            all others do.
    """

    src: Mapping[int, abc.Sequence[int]]
    dst: Mapping[int, abc.Sequence[int]]
    num_tokens: int
    first_token: int = 0
    num_encoder_tokens: int | None = None


class Grid(NamedTuple):
    """How one side numbers the pieces of a table.

    Attributes:
        side: `src` or `dst`, for messages.
        table: The group's.
        tokens_per_block: Of this owner.
        parts: Pieces in a block.
        tokens: The slice of the tokens.
        null_block: The id that holds nothing.
        num_blocks: Ids are below it.
        is_cut: Whether pieces run on evenly within a block only.
    """

    side: str
    table: int
    tokens_per_block: int
    parts: int
    tokens: TokenSlice
    null_block: int | None
    num_blocks: int
    is_cut: bool


class Range(NamedTuple):
    """Tokens to move: first, end, and the first that the last of them still sees.

    Engines compute the last token again, so what it sees is needed, and no later one sees more.
    """

    first: int
    end: int
    seen: int


def checked(blocks: Blocks) -> Blocks:
    """The same, with its counts as plain integers.

    Raises:
        PlanError: A count is none, or the lists do not come by table; the path names it.
    """
    for side, lists in (("src", blocks.src), ("dst", blocks.dst)):
        if not isinstance(lists, Mapping):
            raise PlanError("expected block lists by table", f"blocks.{side}")
    encoder = blocks.num_encoder_tokens
    return blocks._replace(
        num_tokens=_count(blocks.num_tokens, "blocks.num_tokens"),
        first_token=_count(blocks.first_token, "blocks.first_token"),
        num_encoder_tokens=None
        if encoder is None
        else _count(encoder, "blocks.num_encoder_tokens"),
    )


def checked_part(part: tuple[int, int]) -> tuple[int, int]:
    """Ordinal and number of shares as plain integers.

    Raises:
        PlanError: There is no such share.
    """
    ordinal, number = (_count(each, "part") for each in part)
    if not 0 <= ordinal < number:
        raise PlanError(f"there is no share {ordinal} of {number}", "part")
    return ordinal, number


def _count(number: object, path: str) -> int:
    if isinstance(number, bool) or not isinstance(number, SupportsIndex):
        raise PlanError(f"expected an integer, got {repr(number)[:MAX_QUOTED_CHARS]}", path)
    count = index(number)
    if abs(count) > MAX_INTEGER:
        raise PlanError("expected a number below 2^53", path)
    return count


def tokens_of(kind: Kind, window: int, blocks: Blocks) -> Range:
    """The tokens that a group moves.

    Raises:
        PlanError: The counts are not in order.
    """
    first, end = blocks.first_token, blocks.num_tokens
    if kind == "cross" and blocks.num_encoder_tokens is not None:
        first, end = 0, blocks.num_encoder_tokens
    if not 0 <= first <= end:
        raise PlanError(f"tokens {first} to {end}: 0 <= first_token <= num_tokens must hold")
    if kind in ("sliding_window", "sliding_window_mla"):
        return Range(first, end, max(0, end - window))
    if kind == "chunked_local":
        return Range(first, end, max(0, end - 1) // window * window)
    return Range(first, end, 0)


def local_tokens(tokens: TokenSlice, count: int) -> int:
    """How many of the first `count` tokens lie on a rank."""
    cycles, rest = divmod(count, tokens.interleave * tokens.size)
    begin = tokens.rank * tokens.interleave
    return cycles * tokens.interleave + min(max(rest - begin, 0), tokens.interleave)


def num_list_blocks(grid: Grid, count: int) -> int:
    """Blocks in the list of a request of `count` tokens."""
    tokens = grid.tokens
    if tokens.size > 1 and grid.tokens_per_block % tokens.interleave:
        return -(-local_tokens(tokens, count) // grid.tokens_per_block)
    # All ranks share the block table, so a rank's last block may hold none of its own tokens.
    return -(-count // (grid.tokens_per_block * tokens.size))


def ids_of(grid: Grid, blocks: Blocks) -> list[int]:
    """The block ids of a table as integers.

    Raises:
        PlanError: There is no list, or it has something that is not an integer.
    """
    lists = blocks.src if grid.side == "src" else blocks.dst
    path = f"blocks.{grid.side}[{grid.table}]"
    if grid.table not in lists:
        raise PlanError("no block list for this table", path)
    ids = lists[grid.table]
    if isinstance(ids, abc.Iterator | abc.Mapping | abc.Set):
        raise PlanError("expected a list of block ids", path)
    try:
        found = list(map(index, ids))
    except TypeError as error:
        raise PlanError(f"block ids must be integers: {error}", path) from error
    if bool in map(type, ids):
        raise PlanError("block ids must be integers: a bool is none", path)
    return found


def check_ids(grid: Grid, ids: list[int]) -> None:
    """Refuse ids that no pool has; the path names the entry."""
    if ids and (min(ids) < 0 or max(ids) >= grid.num_blocks):
        at = next(at for at, one in enumerate(ids) if not 0 <= one < grid.num_blocks)
        path = f"blocks.{grid.side}[{grid.table}][{at}]"
        block = ids[at] if abs(ids[at]) <= MAX_INTEGER else "beyond 2^53"
        raise PlanError(f"block {block}: the pool has {grid.num_blocks}", path)


def check_length(grid: Grid, ids: list[int], count: int) -> int:
    """Blocks that are missing at the front of a list.

    Raises:
        PlanError: The list is longer than the request.
    """
    missing = num_list_blocks(grid, count) - len(ids)
    if missing < 0:
        raise PlanError(
            f"{len(ids)} blocks for {count} tokens, which take {len(ids) + missing}",
            f"blocks.{grid.side}[{grid.table}]",
        )
    return missing


def check_first(grid: Grid, first: int) -> None:
    """Refuse a first token that does not begin a block of the destination."""
    tokens = grid.tokens_per_block * grid.tokens.size
    if first % tokens:
        raise PlanError(
            f"first_token {first} does not begin a block: the destination's hold {tokens} tokens",
            "blocks.first_token",
        )


def part_of(grid: Grid, tokens: Range, part: tuple[int, int]) -> Range:
    """A share of the tokens, by whole blocks of the destination.

    Which share is whose depends on nothing that sources may differ in.

    Args:
        grid: The destination's side.
        tokens: The request's.
        part: Ordinal and number of the shares.
    """
    per_block = grid.tokens_per_block * grid.tokens.size
    begin = tokens.first // per_block
    count = -(-tokens.end // per_block) - begin
    first, end = (begin + count * at // part[1] for at in (part[0], part[0] + 1))
    return Range(first * per_block, min(end * per_block, tokens.end), tokens.seen)


Pieces = tuple[list[int], list[int]]
"""Piece numbers of the source and of the destination, one for one."""


def even_pieces(
    src: Grid, dst: Grid, ids: Pieces, missing: tuple[int, int], tokens: Range
) -> Pieces:
    """The pieces to move where local token `i` is the same on both sides.

    Args:
        src: The source's side.
        dst: The destination's.
        ids: Block ids of either.
        missing: Blocks that either list lacks at its front.
        tokens: Local ones.

    Raises:
        PlanError: A piece that a query sees has no block.
    """
    per_block = dst.tokens_per_block
    first, end = tokens.first * dst.parts // per_block, -(-tokens.end * dst.parts // per_block)
    ours = _numbers(src, ids[0], first - missing[0] * src.parts, end - first)
    theirs = _numbers(dst, ids[1], first - missing[1] * dst.parts, end - first)
    if (
        len(ours) == len(theirs) == end - first
        and src.null_block not in ids[0]
        and dst.null_block not in ids[1]
    ):
        return ours, theirs
    # A rank may have none of the tokens that are seen, and yet others of the block they are in.
    seen = tokens.seen * dst.parts // per_block if tokens.seen < tokens.end else end
    held: Pieces = ([], [])
    lacks = end - first - len(ours), end - first - len(theirs)
    for at in range(min(max(seen - first, 0), lacks[1]), end - first):
        numbers = (
            ours[at - lacks[0]] if at >= lacks[0] else -1,
            theirs[at - lacks[1]] if at >= lacks[1] else -1,
        )
        if _moves(src, dst, numbers, first + at, is_seen=first + at >= seen):
            held[0].append(numbers[0])
            held[1].append(numbers[1])
    return held


def _numbers(grid: Grid, ids: list[int], first: int, count: int) -> list[int]:
    """Piece numbers of `count` pieces of a list; of fewer, the last, where it begins later."""
    parts = grid.parts
    first, count = max(first, 0), count + min(first, 0)
    if count <= 0:
        return []
    begin, skip = divmod(first, parts)
    if parts == 1:
        return ids[begin : begin + count]
    needed = ids[begin : -(-(first + count) // parts)]
    numbers = [one * parts + part for one in needed for part in range(parts)]
    return numbers[skip : skip + count]


def _moves(src: Grid, dst: Grid, numbers: tuple[int, int], piece: int, *, is_seen: bool) -> bool:
    """Whether a piece moves: it does where both sides have a block for it.

    Args:
        src: The source's side.
        dst: The destination's.
        numbers: The piece on either side; -1 where the list begins later.
        piece: Its ordinal among the destination's.
        is_seen: Whether the last token of the request sees any of it.

    Raises:
        PlanError: It is seen, and a list lacks it, or the source's block is the null block.
    """
    for grid, number in ((dst, numbers[1]), (src, numbers[0])):
        path = f"blocks.{grid.side}[{grid.table}]"
        token = piece * dst.tokens_per_block // dst.parts
        if number < 0:
            if is_seen:
                raise PlanError(f"too short: local token {token} has no block", path)
            return False
        if number // grid.parts == grid.null_block:
            if is_seen and grid.side == "src":
                raise PlanError(
                    f"local token {token} is in the null block, and the last token of the "
                    "request sees it",
                    path,
                )
            return False
    return True


def uneven_pieces(
    src: Grid, dst: Grid, ids: Pieces, missing: tuple[int, int], tokens: Range
) -> Pieces:
    """As `even_pieces`, where the sides hold different slices; `tokens` are the request's."""
    step = dst.tokens_per_block // dst.parts
    held: Pieces = ([], [])
    # Before the destination's list begins, only what is seen could be wrong.
    begin = min(tokens.seen // step * step, _token(dst, missing[1] * dst.tokens_per_block))
    token = _common(src, dst, max(tokens.first, begin), tokens.end)
    while token < tokens.end:
        ours, theirs = _ordinal(src, token, step), _ordinal(dst, token, step)
        numbers = (_number(src, ids[0], ours, missing[0]), _number(dst, ids[1], theirs, missing[1]))
        if _moves(src, dst, numbers, theirs, is_seen=token + step > tokens.seen):
            held[0].append(numbers[0])
            held[1].append(numbers[1])
        token = _common(src, dst, token + step, tokens.end)
    return held


def _common(src: Grid, dst: Grid, token: int, end: int) -> int:
    """The first token from one on that lies on both ranks, or one beyond the end."""
    while token < end:
        later = max(_held_from(src, token), _held_from(dst, token))
        if later == token:
            break
        token = later
    return token


def _held_from(grid: Grid, token: int) -> int:
    """The first token from one on that lies on a rank."""
    tokens = grid.tokens
    unit = token // tokens.interleave
    ahead = (tokens.rank - unit) % tokens.size
    return (unit + ahead) * tokens.interleave if ahead else token


def _token(grid: Grid, local: int) -> int:
    """Which of the request's tokens a rank's local one is."""
    tokens = grid.tokens
    cycle, inside = divmod(local, tokens.interleave)
    return (cycle * tokens.size + tokens.rank) * tokens.interleave + inside


def _ordinal(grid: Grid, token: int, step: int) -> int:
    """The ordinal of a piece among those of the rank that has its tokens."""
    tokens = grid.tokens
    unit, inside = divmod(token, tokens.interleave)
    return (unit // tokens.size * tokens.interleave + inside) // step


def _number(grid: Grid, ids: list[int], ordinal: int, missing: int) -> int:
    block, part = divmod(ordinal, grid.parts)
    return ids[block - missing] * grid.parts + part if block >= missing else -1


def sequences(src: Grid, dst: Grid, pieces: Pieces) -> tuple[Sequence, ...]:
    """The longest runs of pieces that are consecutive on both sides and addressed evenly."""
    found: list[Sequence] = []
    if not pieces[0]:
        return ()
    src_cut = src.parts if src.is_cut else 0
    dst_cut = dst.parts if dst.is_cut else 0
    begin = due = pieces[0][0]
    apart = begin - pieces[1][0]
    for ours, theirs in zip(*pieces, strict=True):
        if (
            ours != due
            or ours - theirs != apart
            or (src_cut and ours % src_cut == 0 and ours != begin)
            or (dst_cut and theirs % dst_cut == 0 and ours != begin)
        ):
            found.append(Sequence(begin, begin - apart, due - begin))
            begin, apart = ours, ours - theirs
        due = ours + 1
    found.append(Sequence(begin, begin - apart, due - begin))
    return tuple(found)
