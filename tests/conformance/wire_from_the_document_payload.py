"""Which bytes a read is: `connector/WIRE.md`, 8, element by element, and a holder's refusals.

Descriptors are those of `read_descriptor`. Block ids are whatever the caller counts pages by: the
holder's own, or the positions in a list, as a reader knows no others.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any, Final

from conformance.wire_from_the_document_descriptor import Tree
from conformance.wire_from_the_document_packing import need, refuse

Message = dict[str, Any]
Run = tuple[str, int, int]  # pool, first byte, number of bytes
MAX_RUNS: Final = 2**18


def group_of(descriptor: Tree, read: Message) -> Tree:
    for group in descriptor["groups"]:
        if group["id"] == read["group"]:
            return dict(group)
    refuse("read.group", "no such group")


def check_read(descriptor: Tree, read: Message) -> None:
    """Refuse a read that breaks a rule of 8; whose blocks are held is not known here."""
    group = group_of(descriptor, read)
    need(group["transferable"], "read.group", "is not transferable")
    form, layers, heads = read["form"], read["layers"], read["heads"]
    if layers is not None:
        need(form != "block", "read.layers", "a block has all of them")
        need(sum(layers) <= len(group["layers"]), "read.layers", "beyond the group's")
    if heads is not None:
        need(form == "elements", "read.heads", "only with form elements")
        need(not group["opaque"], "read.heads", "the group is opaque")
        need(all("H" in r["shape"] for r in group["roles"]), "read.heads", "a role without heads")
        first, end, _ = group["owner"]["heads"]
        is_held = first <= heads[0] and sum(heads) <= end
        need(is_held, "read.heads", "not all of them are held")
    if form == "block":
        names = {pool for place in group["places"] for pool in place["pools"]}
        pools = [pool for pool in descriptor["pools"] if pool["id"] in names]
        is_whole = len(pools) == 1 and pools[0]["block_bytes"] > 0
        need(is_whole, "read.form", "blocks do not own bytes of one pool")
    elif form == "page":
        has_pages = all(place["page_bytes"] > 0 for place in group["places"])
        need(has_pages, "read.form", "pages do not own their bytes")
    else:
        _runs_of_places(group, heads)


def positions(ranges: Sequence[Sequence[int]]) -> list[int]:
    return [p for first, count in ranges for p in range(first, first + count)]


def runs_of(descriptor: Tree, read: Message, block_ids: Iterable[int]) -> list[Run]:
    """The payload's runs of bytes, in order; `block_ids` are those of `read.blocks`."""
    group = group_of(descriptor, read)
    runs: list[Run] = []
    pages = _pages(group, read)
    for block in block_ids:
        if read["form"] == "block":
            pool = group["places"][0]["pools"][0]
            size = next(p["block_bytes"] for p in descriptor["pools"] if p["id"] == pool)
            _join(runs, (pool, block * size, size))
            continue
        for pool, start, stride, inside in pages:
            for first, count in inside:
                _join(runs, (pool, start + block * stride + first, count))
    return runs


def num_payload_bytes(descriptor: Tree, read: Message) -> int:
    """All that a reader needs to know before the bytes come."""
    per_block = sum(count for _, _, count in runs_of(descriptor, read, [0]))
    return per_block * len(positions(read["blocks"]))


def take(memory: Mapping[str, Any], runs: Sequence[Run]) -> bytes:
    return b"".join(bytes(memory[pool][first : first + count]) for pool, first, count in runs)


def put(memory: Mapping[str, bytearray], runs: Sequence[Run], payload: bytes) -> None:
    """Write a payload to where its bytes are in memory that is laid out as the holder's."""
    at = 0
    for pool, first, count in runs:
        memory[pool][first : first + count] = payload[at : at + count]
        at += count


def _join(runs: list[Run], run: Run) -> None:
    if runs and runs[-1][0] == run[0] and runs[-1][1] + runs[-1][2] == run[1]:
        runs[-1] = (run[0], runs[-1][1], runs[-1][2] + run[2])
    else:
        runs.append(run)


def _pages(group: Tree, read: Message) -> list[tuple[str, int, int, list[tuple[int, int]]]]:
    """Pool, start in block 0, stride and runs of each page of a block, in order."""
    first, count = read["layers"] or (0, len(group["layers"]))
    if read["form"] == "page":
        inside = [[(0, place["page_bytes"])] for place in group["places"]]
    else:
        inside = _runs_of_places(group, read["heads"])
    pages = []
    for layer in range(first, first + count):
        for place, runs in zip(group["places"], inside, strict=True):
            pool = place["pools"][layer if len(place["pools"]) > 1 else 0]
            start = place["offset"] + layer * place["layer_stride"]
            pages.append((pool, start, place["block_stride"], runs))
    return pages


def _runs_of_places(group: Tree, heads: Sequence[int] | None) -> list[list[tuple[int, int]]]:
    """The bytes of each place with a bit of an element, from the page's start."""
    found = []
    for number in range(len(group["places"])):
        wanted: set[int] = set()
        others: set[int] = set()
        for role in group["roles"]:
            if role["place"] == number:
                for head, at in _elements(role, group["owner"]["heads"][0]):
                    is_wanted = heads is None or heads[0] <= head < sum(heads)
                    last = at + role["bits"] - 1
                    (wanted if is_wanted else others).update(range(at // 8, last // 8 + 1))
        need(not wanted & others, "read.heads", "a byte holds bits of another head")
        runs: list[tuple[int, int]] = []
        for byte in sorted(wanted):
            if runs and sum(runs[-1]) == byte:
                runs[-1] = (runs[-1][0], runs[-1][1] + 1)
            else:
                runs.append((byte, 1))
        need(len(runs) <= MAX_RUNS, "read.group", "too many runs of bytes")
        found.append(runs)
    return found


def _elements(role: Tree, first_head: int) -> Iterable[tuple[int, int]]:
    """The head and the bit address of each element of a page (ABI.md, 3)."""
    axes = list(role["shape"])
    steps = [
        [
            sum((i // div) % extent * stride for a, div, extent, stride in role["terms"] if a == x)
            for i in range(role["shape"][x])
        ]
        for x in axes
    ]
    which = axes.index("H") if "H" in axes else -1
    for index in product(*(range(role["shape"][x]) for x in axes)):
        at = role["base_bits"] + sum(steps[i][index[i]] for i in range(len(axes)))
        yield first_head + (index[which] if which >= 0 else 0), at
