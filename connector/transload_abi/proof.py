"""Proof that a plan writes every bit that it has to, once, from the right bit, and no other.

The bits of one piece of every batch are enumerated from the descriptors alone (`proof_bits`) and
compared with what the plan's templates come to; that holds for all pieces, since both sides'
addresses grow evenly with the block. Which piece goes where is compared with the block lists where
those are given (`proof_tokens`).
"""

from bisect import bisect_right
from itertools import product
from math import lcm

from transload_abi.codecs import CODECS
from transload_abi.dtypes import DTYPES
from transload_abi.errors import LimitExceeded, ProofFailed
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.plan.pieces import Blocks
from transload_abi.plan.types import Batch, Conversion, Operand, Plan, Side, Template
from transload_abi.proof_bits import (
    MAX_STRIPS,
    Bundle,
    Elements,
    Home,
    Strip,
    Strips,
    bundles,
    elements,
    expected,
    is_unchanged,
    outside_scale,
)
from transload_abi.proof_pads import check_pads
from transload_abi.proof_tokens import check_tokens
from transload_abi.types import Descriptor, Group


def prove(plan: Plan, src: Descriptor, dst: Descriptor, blocks: Blocks | None = None) -> None:
    """Check a plan for all that both sides hold.

    Args:
        plan: Any plan between the two; for one that takes a share of the layers or heads, pass the
            descriptor of that share as the source.
        src: Checked.
        dst: Checked.
        blocks: What the plan was made for. Without it, a piece may come from any piece.

    Raises:
        ProofFailed: The plan is wrong; the path names the batch.
        LimitExceeded: It is too large to say.
    """
    due = bundles(src, dst)
    moved: dict[int, int] = {}
    for number, batch in enumerate(plan.batches):
        path = f"batches[{number}]"
        _check_pieces(batch, src, dst, path)
        memo: Memo = {}
        claimed = _claimed(batch, due, memo, path)
        for at in claimed:
            if at in moved:
                raise ProofFailed(f"{due[at].name} is moved by batch {moved[at]}, too", path)
            moved[at] = number
        mine = [due[at] for at in claimed]
        for parts in _part_pairs(batch):
            _check_bits(batch, mine, parts, (src, dst, memo), path)
        if blocks is not None:
            for bundle in mine:
                check_tokens(batch, bundle, blocks, path)
    missing = [bundle.name for at, bundle in enumerate(due) if at not in moved]
    if missing:
        raise ProofFailed(f"no batch moves {', '.join(missing[:8])}")
    _check_tables(plan)


# --- pieces


def _check_pieces(batch: Batch, src: Descriptor, dst: Descriptor, path: str) -> None:
    sides = [(each.src, each.dst) for each in batch.templates]
    for conversion in batch.conversions:
        sides += product(
            (each.side for each in conversion.src), (each.side for each in conversion.dst)
        )
    for ours, theirs in sides:
        for side, parts, descriptor in (
            (ours, batch.src_parts, src),
            (theirs, batch.dst_parts, dst),
        ):
            pool = next((pool for pool in descriptor.pools if pool.id == side.pool), None)
            if pool is None or len(side.part_offsets) != parts:
                raise ProofFailed(
                    f"no pool {side.pool[:MAX_QUOTED_CHARS]!r} of {parts} parts a block", path
                )
            pieces = [
                (each.src if side is ours else each.dst, each.num_pieces)
                for each in batch.sequences
            ]
            if any(
                count < 1 or first < 0 or first + count > pool.num_blocks * parts
                for first, count in pieces
            ):
                raise ProofFailed(f"a piece is outside of the blocks of pool {pool.id}", path)
    ends = 0
    for _, first, count in sorted(batch.sequences, key=lambda each: each.dst):
        if first < ends:
            raise ProofFailed(f"piece {first} of the destination is written twice", path)
        ends = first + count


def _part_pairs(batch: Batch) -> set[tuple[int, int]]:
    """The parts of a block that meet, source and destination; at least one pair."""
    period = lcm(batch.src_parts, batch.dst_parts)
    return {
        ((each.src + i) % batch.src_parts, (each.dst + i) % batch.dst_parts)
        for each in batch.sequences
        for i in range(min(each.num_pieces, period))
    } or {(0, 0)}


def _check_tables(plan: Plan) -> None:
    """No block is written for two tables."""
    owners: dict[tuple[str, int], int] = {}
    for batch in plan.batches:
        pools = {each.dst.pool for each in batch.templates}
        pools |= {each.side.pool for one in batch.conversions for each in one.dst}
        for sequence, pool in product(batch.sequences, sorted(pools)):
            last = sequence.dst + sequence.num_pieces - 1
            for block in range(sequence.dst // batch.dst_parts, last // batch.dst_parts + 1):
                if owners.setdefault((pool, block), batch.table) != batch.table:
                    raise ProofFailed(f"block {block} of pool {pool} is written for two tables")


# --- bits

Memo = dict[tuple[str, tuple[int, int]], Strips]
"""What is due, by bundle and parts: the same is asked for to see what a batch moves."""


def _due(batch: Batch, bundle: Bundle, parts: tuple[int, int], memo: Memo) -> Strips:
    key = (bundle.name, parts)
    if key not in memo:
        states = _states(batch, bundle)
        memo[key] = expected(bundle, parts[0] * states, parts[1] * states, states)
    return memo[key]


def _claimed(batch: Batch, due: list[Bundle], memo: Memo, path: str) -> list[int]:
    """Which bundles a batch moves: those of which it writes something."""
    parts = min(_part_pairs(batch))
    written = _written(batch, parts, path)
    found = []
    for at, bundle in enumerate(due):
        if bundle.dst.table != batch.table or not _states(batch, bundle):
            continue
        into = _due(batch, bundle, parts, memo)
        if any(_do_meet(written.get(home, []), strips) for home, strips in into.items()):
            found.append(at)
    return found


def _states(batch: Batch, bundle: Bundle) -> int:
    """States of a piece; 0 where the batch's parts do not fit the bundle."""
    ours, theirs = bundle.src.states_per_block, bundle.dst.states_per_block
    if ours % batch.src_parts or theirs % batch.dst_parts:
        return 0
    states = ours // batch.src_parts
    return states if states == theirs // batch.dst_parts else 0


def _do_meet(written: list[Strip], strips: list[Strip]) -> bool:
    firsts = [strip.first for strip in written]
    for strip in strips:
        at = bisect_right(firsts, strip.end - 1) - 1
        if at >= 0 and written[at].end > strip.first:
            return True
    return False


def _check_bits(
    batch: Batch,
    mine: list[Bundle],
    parts: tuple[int, int],
    known: tuple[Descriptor, Descriptor, Memo],
    path: str,
) -> None:
    written = _written(batch, parts, path)
    due: Strips = {}
    for bundle in mine:
        for home, strips in _due(batch, bundle, parts, known[2]).items():
            due.setdefault(home, []).extend(strips)
    for conversion in batch.conversions:
        if not any([_check_conversion(conversion, each, batch, parts, path) for each in mine]):
            raise ProofFailed(
                f"nobody asks for {conversion.role} of layer {conversion.layer}", path
            )
    for home in written.keys() | due.keys():
        extra = _extra(written.get(home, []), _joined(due.get(home, []), path), path)
        if extra:
            check_pads(extra, home, batch, mine, known[:2], path)


def _extra(written: list[Strip], due: list[Strip], path: str) -> list[Strip]:
    """What is written beyond what is due; both sorted and joined.

    Raises:
        ProofFailed: Something due is not written, or comes from elsewhere.
    """
    extra: list[Strip] = []
    at = 0
    for strip in written:
        first = strip.first
        while at < len(due) and due[at].first < strip.end:
            wanted = due[at]
            if wanted.first < first or wanted.end > strip.end:
                raise ProofFailed(f"bits {wanted.first} to {wanted.end} are not all written", path)
            if (wanted.shift, wanted.src) != (strip.shift, strip.src):
                raise ProofFailed(f"bits from {wanted.first} on come from the wrong place", path)
            if wanted.first > first:
                extra.append(strip._replace(first=first, end=wanted.first))
            first = wanted.end
            at += 1
        if first < strip.end:
            extra.append(strip._replace(first=first))
    if at < len(due):
        raise ProofFailed(f"bits {due[at].first} to {due[at].end} are not written", path)
    return extra


def _joined(strips: list[Strip], path: str) -> list[Strip]:
    """Sorted, and neighbours that come from neighbours as one.

    Raises:
        ProofFailed: Two overlap.
    """
    joined: list[Strip] = []
    for strip in sorted(strips, key=lambda each: each.first):
        if joined and strip.first < joined[-1].end:
            raise ProofFailed(f"bit {strip.first} is written twice", path)
        if joined and strip.first == joined[-1].end and strip[2:] == joined[-1][2:]:
            joined[-1] = joined[-1]._replace(end=strip.end)
        else:
            joined.append(strip)
    return joined


def _written(batch: Batch, parts: tuple[int, int], path: str) -> Strips:
    """Everything that a batch writes for one piece of block 0."""
    found: Strips = {}
    num_strips = 0
    for template in batch.templates:
        strips = _template_strips(template, parts, path)
        num_strips += len(strips)
        if num_strips > MAX_STRIPS:
            raise LimitExceeded(f"more than {MAX_STRIPS} runs in a piece", path)
        home = Home(template.dst.pool, template.dst.block_stride)
        found.setdefault(home, []).extend(strips)
    for conversion in batch.conversions:
        for operand in conversion.dst:
            home = Home(operand.side.pool, operand.side.block_stride)
            found.setdefault(home, []).extend(_operand_strips(operand, parts[1]))
    return {home: _joined(strips, path) for home, strips in found.items()}


def _template_strips(template: Template, parts: tuple[int, int], path: str) -> list[Strip]:
    if template.run_bytes < 1 or any(loop[0] < 1 for loop in template.loops):
        raise ProofFailed("a template copies nothing", path)
    num_runs = 1
    for loop in template.loops:
        num_runs *= loop[0]
    if num_runs > MAX_STRIPS:
        raise LimitExceeded(f"more than {MAX_STRIPS} runs in a piece", path)
    starts = [(_start(template.src, parts[0]), _start(template.dst, parts[1]))]
    for count, src_step, dst_step in template.loops:
        starts = [
            (src + i * src_step, dst + i * dst_step) for src, dst in starts for i in range(count)
        ]
    size, home = 8 * template.run_bytes, Home(template.src.pool, template.src.block_stride)
    return [Strip(8 * dst, 8 * dst + size, 8 * (src - dst), home) for src, dst in starts]


def _start(side: Side, part: int) -> int:
    return side.offset + side.part_offsets[part]


# --- conversions


def _operand_spots(operand: Operand, part: int) -> list[int]:
    """The bit of each element, in the order of its axes."""
    spots = [8 * _start(operand.side, part) + operand.bit]
    for axis, extent in operand.shape.items():
        steps = [
            sum(
                i // div % count * stride
                for name, div, count, stride in operand.terms
                if name == axis
            )
            for i in range(extent)
        ]
        spots = [spot + step for spot in spots for step in steps]
        if len(spots) > MAX_STRIPS:
            raise LimitExceeded(f"more than {MAX_STRIPS} elements in a conversion")
    return spots


def _operand_strips(operand: Operand, part: int) -> list[Strip]:
    bits = DTYPES[operand.dtype].bits
    return [Strip(spot, spot + bits, 0, None) for spot in _operand_spots(operand, part)]


def _check_conversion(
    conversion: Conversion, bundle: Bundle, batch: Batch, parts: tuple[int, int], path: str
) -> bool:
    """Hold a conversion against the descriptors; False if it is none of this bundle's."""
    ours, theirs = bundle.src.role(conversion.role), bundle.dst.role(conversion.role)
    if conversion.layer not in bundle.layers or ours is None or theirs is None:
        return False
    if is_unchanged(bundle, ours, theirs, conversion.layer):
        raise ProofFailed(
            f"{conversion.role} of layer {conversion.layer} needs no conversion", path
        )
    states = _states(batch, bundle)
    written = _operand_heads(conversion, bundle.dst, False, (parts[1], states), path)
    if not all(set(heads) <= set(bundle.heads) for heads in written):
        return False
    read = _operand_heads(conversion, bundle.src, True, (parts[0], states), path)
    if len(written | read) > 1:
        raise ProofFailed(f"a conversion of {conversion.role} mixes heads", path)
    return True


def _operand_heads(
    conversion: Conversion, group: Group, is_src: bool, piece: tuple[int, int], path: str
) -> set[range]:
    """Hold one side of a conversion against its group: the model's heads that each operand has.

    Args:
        conversion: Of a role and a layer of the group.
        group: The source's or the destination's.
        is_src: Which of the two it is.
        piece: Which part of the block, and its states.
        path: Of the batch.
    """
    codec = conversion.src_codec if is_src else conversion.dst_codec
    operands = conversion.src if is_src else conversion.dst
    names = [conversion.role, *_scale_roles(group, conversion.role)]
    if codec != group.codec.id or [each.role for each in operands] != names:
        raise ProofFailed(f"a conversion of {conversion.role} has other operands", path)
    found = set()
    for operand in operands:
        role = group.role(operand.role)
        assert role, "its name was just looked up"
        where = elements(group, role, conversion.layer)
        heads = _heads(operand, where, piece, path)
        if heads is not None:
            first = group.owner.heads[0] + heads.start
            found.add(range(first, first + len(heads)))
        scale = outside_scale(group, role.role, conversion.layer)
        home = Home(operand.side.pool, operand.side.block_stride)
        if (operand.dtype, operand.values, home) != (role.dtype, scale, where.home):
            raise ProofFailed(f"an operand {operand.role} is not as its descriptor says", path)
    return found


def _scale_roles(group: Group, value: str) -> list[str]:
    scale = CODECS[group.codec.id].scale_role.get(value)
    return [scale] if scale else []


def _heads(operand: Operand, where: Elements, piece: tuple[int, int], path: str) -> range | None:
    """Which of a group's heads an operand covers, found by where it begins; None: it has none."""
    part, states = piece
    spots = _operand_spots(operand, part)
    axes = dict(where.axes)
    if list(operand.shape) != list(axes):
        raise ProofFailed(f"an operand {operand.role} has other axes", path)
    axes["N"] = axes["N"][part * states : (part + 1) * states]
    heads = None
    if "H" in axes:
        first = spots[0] - where.base - axes["N"][0]
        if first not in axes["H"]:
            raise ProofFailed(f"an operand {operand.role} begins at no head", path)
        begin = axes["H"].index(first)
        heads = range(begin, begin + operand.shape["H"])
        axes["H"] = axes["H"][begin : heads.stop]
    due = [where.base + sum(steps) for steps in product(*axes.values())]
    if due != spots:
        raise ProofFailed(f"an operand {operand.role} is not where its descriptor says", path)
    return heads
