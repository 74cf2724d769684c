"""Whether all that a `kvabi/1` descriptor claims lies inside and apart (6, rules 6 to 8).

Everything is counted in bits; only between tables is it bytes that lie apart.
"""

from itertools import product
from typing import NamedTuple

from conformance.abi_from_the_document_spelling import Tree, need
from conformance.abi_from_the_document_values import plain_places

Run = tuple[int, int, tuple[tuple[int, int], ...]]  # first bit, bits, [(stride, extent)]

MAX_STEPS = 2**18
HALF = 4  # bits of the smallest elements


def meet(runs: list[Run]) -> bool:
    """Whether two of the runs, or of one run's repetitions, have a bit in common."""
    steps, queue = 0, [runs]
    while queue:
        cluster: list[Run] = []
        last = -1
        clusters = []
        for run in sorted(queue.pop()):
            if run[0] >= last:
                cluster = []
                clusters.append(cluster)
            cluster.append(run)
            last = max(last, _end(run))
        for cluster in clusters:
            if len(cluster) == 1 and (not cluster[0][2] or _nested(cluster[0])):
                continue
            if not any(digits for _, _, digits in cluster):
                return True
            outer = {digits[0] if digits else None for _, _, digits in cluster}
            inner = [(base, size, digits[1:]) for base, size, digits in cluster]
            first = cluster[0][0]
            digit = next(iter(outer))
            if len(outer) == 1 and digit and max(map(_end, inner)) - first <= digit[0]:
                queue.append(inner)
                continue
            wide = max(cluster, key=lambda run: run[2][0] if run[2] else (-1, 0))
            base, size, ((stride, extent), *rest) = wide
            steps += extent + len(cluster)
            need(steps <= MAX_STEPS, "", "interleaves too finely")
            cluster.remove(wide)
            cluster += [(base + i * stride, size, tuple(rest)) for i in range(extent)]
            queue.append(cluster)
    return False


def _end(run: Run) -> int:
    return run[0] + run[1] + sum(stride * (extent - 1) for stride, extent in run[2])


def _nested(run: Run) -> bool:
    span = run[1]
    for stride, extent in reversed(run[2]):
        if stride < span:
            return False
        span += stride * (extent - 1)
    return True


def _run(base: int, size: int, digits: list[tuple[int, int]]) -> Run:
    """A run with its digits from the widest stride down, and those that continue it merged."""
    left = sorted((digit for digit in digits if digit[1] > 1), reverse=True)
    while left and left[-1][0] == size:
        size *= left.pop()[1]
    return base, size, tuple(left)


def _in_bytes(run: Run) -> list[Run]:
    """The bytes that a run touches: runs of whole bytes, none of which has one twice."""
    base, size, digits = run
    if size > HALF and (base % 8 or size % 8):
        digits, size = (*digits, (HALF, size // HALF)), HALF
    odd = next((digit for digit in digits if digit[0] % 8), None)
    if odd is None:
        return [_run(base // 8 * 8, max(size, 8), list(digits))]
    stride, extent = odd
    others = tuple(digit for digit in digits if digit != odd)
    evens = (base, size, (*others, (2 * stride, (extent + 1) // 2)))
    odds = (base + stride, size, (*others, (2 * stride, extent // 2)))
    return _in_bytes(evens) + _in_bytes(odds)


class Claim(NamedTuple):
    """What a role, or a whole page, has of a pool: its runs in block 0, and a step to the next."""

    table: int
    stride: int
    block: Run
    path: str

    def blocks(self, first: int, end: int) -> Run:
        """The runs of the blocks from `first` to `end`."""
        base, size, digits = self.block
        return _run(base + first * self.stride, size, [*digits, (self.stride, end - first)])


def touch(a: Run, b: Run) -> bool:
    """Whether two runs, either of which is apart in itself, have a byte in common."""
    return any(meet([x, y]) for x, y in product(_in_bytes(a), _in_bytes(b)))


def check_bytes(d: Tree) -> None:
    """Rules 6 to 8."""
    pools = {pool["id"]: (f"pools[{i}]", pool) for i, pool in enumerate(d["pools"])}
    claims: dict[str, list[Claim]] = {}
    for i, g in enumerate(d["groups"]):
        places = plain_places(g)
        for at, place in enumerate(places):
            in_page = []
            for j, role in enumerate(g["roles"]):
                if places.index(places[role["place"]]) != at:
                    continue  # equal places are one
                path = f"groups[{i}].roles[{j}]"
                digits = [(t[3], t[2]) for t in role["terms"]]
                in_page.append((_run(role["base_bits"], role["bits"], digits), path))
            shown = in_page
            if place["page_bytes"] and in_page:
                for run, path in in_page:
                    need(_end(run) <= 8 * place["page_bytes"], path, "ends beyond its page")
                need(not meet([run for run, _ in in_page]), f"groups[{i}].roles", "elements meet")
                shown = [((0, 8 * place["page_bytes"], ()), f"groups[{i}].places[{at}]")]
            for position, layer in product(range(len(place["pools"])), shown):
                (base, size, page_digits), path = layer
                digits = list(page_digits)
                if len(place["pools"]) == 1:
                    digits.append((8 * place["layer_stride"], len(g["layers"])))
                where, pool = pools[place["pools"][position]]
                stride, own = 8 * place["block_stride"], 8 * pool["block_bytes"]
                block = _run(8 * place["offset"] + base, size, digits)
                claim = Claim(g["table"], stride, block, path)
                claims.setdefault(place["pools"][position], []).append(claim)
                need(own in (0, stride), path, f"block_stride is not {where}.block_bytes")
                need(not own or _end(block) <= own, path, "beyond the block that owns it")
                end = _end(block) + stride * (pool["num_blocks"] - 1)
                need(end <= 8 * pool["num_bytes"], path, f"ends at bit {end} of {where}")
    for where, pool in pools.values():
        need(pool["block_bytes"] * pool["num_blocks"] <= pool["num_bytes"], where, "block_bytes")
        _check_pool(pool["num_blocks"], claims.get(pool["id"], []))


def _check_pool(count: int, claims: list[Claim]) -> None:
    """Rule 7 in one pool of `count` blocks."""
    for table in {claim.table for claim in claims}:
        own = [claim for claim in claims if claim.table == table]
        need(not meet([c.blocks(0, count) for c in own]), own[-1].path, "elements or pages meet")
    for a, b in product(claims, claims):
        if a.table == b.table:
            continue
        if a.stride != b.stride:
            meets = touch(a.blocks(0, count), b.blocks(0, count))
        else:
            meets = count > 1 and touch(a.block, b.blocks(1, count))
        need(not meets, a.path, f"shares bytes with {b.path}")
