"""A descriptor of the bytes that a read sends: a pool of which block `i` is the `i`-th sent.

With it the bytes become blocks of the reader by the same plans as if they lay in the holder's own
memory. Knows nothing of streams or requests.

**Theory.** `WIRE.md` sends of each page the bytes that hold elements, ascending: an element's byte
in the payload is the rank of its byte among those. Ranks are found for all elements of a role at
once; along each axis they give digits anew, greedily from the fastest, which finds digits wherever
there are some: a digit ends where the next index is not one stride further. What was derived is
then compared with all ranks.
"""

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from transload_abi.canonical import Term, canonical
from transload_abi.check import check
from transload_abi.codecs import scale_param
from transload_abi.compare_words import short
from transload_abi.errors import Refused
from transload_abi.roles import ROLES
from transload_abi.types import Codec, Descriptor, Group, Param, Place, Pool, Role
from transload_abi.wire.messages import Read
from transload_abi.wire.payload import Payload, payload_of

Bits = NDArray[np.int64]

POOL: Final = "payload"
"""The id of the one pool."""

MAX_ELEMENTS: Final = 1 << 22
"""Of a role, whose ranks are looked at; they take 32 MiB and about half a second. The largest page
of an engine is a recurrent state of 2^20 elements."""


def staged(src: Descriptor, read: Read, num_blocks: int) -> Descriptor:
    """What a payload of so many blocks is.

    Args:
        src: The holder's, canonical. Its null blocks are none here.
        read: Its group, layers, heads and form count.
        num_blocks: At least one.

    Returns:
        Canonical and checked: one pool, `POOL`; the group of the read under its own id, of form
        `block` all groups of its table that lie in that pool alone.

    Raises:
        BadRead: The holder has no such bytes to send.
        Refused: No digits say where the elements of a role are in the payload, or it has more than
            `MAX_ELEMENTS`.
        DescriptorError: A pool of so many blocks is beyond the limits.
    """
    payload = payload_of(src, read)
    group = next(each for each in src.groups if each.id == read.group)
    if read.form == "block":
        groups = _whole_groups(src, group)
    elif read.form == "page":
        groups = (_of_pages(group, payload),)
    else:
        groups = (_of_elements(group, payload, _heads(group, read)),)
    is_block = read.form == "block"
    block_bytes = payload.block_bytes
    pool = Pool(
        POOL,
        "host",
        block_bytes * num_blocks,
        num_blocks,
        block_bytes=block_bytes if is_block else 0,
    )
    made = canonical(replace(src, pools=(pool,), groups=groups))
    check(made)
    return made


def _whole_groups(src: Descriptor, group: Group) -> tuple[Group, ...]:
    (pool,) = {pool for place in group.places for pool in place.pools}
    found = []
    for each in src.groups:
        places = [each.places[number] for number in {role.place for role in each.roles}]
        if each.table == group.table and all(set(one.pools) == {pool} for one in places):
            ours = tuple(replace(place, pools=(POOL,)) for place in each.places)
            if all(len(place.pools) == 1 for place in each.places):
                found.append(replace(each, places=ours, null_block=None))
    return tuple(found)


def _of_pages(group: Group, payload: Payload) -> Group:
    places, offset = [], 0
    for place in group.places:
        places.append(_place(payload, offset, place.page_bytes))
        offset += place.page_bytes
    return _cut(group, payload, places, group.roles, group.owner.heads[:2])


def _place(payload: Payload, offset: int, page_bytes: int) -> Place:
    is_one = len(payload.layers) == 1
    layer_stride = 0 if is_one else payload.layer_bytes
    return Place((POOL,), payload.block_bytes, layer_stride, offset, page_bytes)


def _cut(
    group: Group,
    payload: Payload,
    places: Sequence[Place],
    roles: Sequence[Role],
    heads: tuple[int, int],
) -> Group:
    """The layers and heads of a group that are sent."""
    positions = list(payload.layers)
    return replace(
        group,
        layers=tuple(group.layers[at] for at in positions),
        places=tuple(places),
        roles=tuple(roles),
        codec=_codec(group, positions),
        null_block=None,
        owner=replace(group.owner, heads=(*heads, group.owner.heads[2]), replica=(0, 1)),
    )


def _codec(group: Group, positions: list[int]) -> Codec:
    params: dict[str, Param] = dict(group.codec.params)
    for role in group.roles:
        scales = params.get(scale_param(role.role))
        if isinstance(scales, list):
            params[scale_param(role.role)] = [scales[at] for at in positions]
    return replace(group.codec, params=params)


# --- elements


def _heads(group: Group, read: Read) -> tuple[int, int]:
    if read.heads is None:
        return group.owner.heads[0], group.owner.heads[1]
    return read.heads[0], read.heads[0] + read.heads[1]


def _of_elements(group: Group, payload: Payload, heads: tuple[int, int]) -> Group:
    ranks = _Ranks(group, payload)
    first = heads[0] - group.owner.heads[0]
    roles = [ranks.role(_Cut(role, (first, heads[1] - heads[0]))) for role in group.roles]
    places = []
    for number in range(len(group.places)):
        inside = [role for role in roles if role.place == number]
        start = min(role.base_bits for role in inside) // 8
        end = max(_end_bits(role) for role in inside)
        places.append(_place(payload, start, -(-end // 8) - start))
    roles = [
        replace(role, base_bits=role.base_bits - 8 * places[role.place].offset) for role in roles
    ]
    return _cut(group, payload, places, roles, heads)


def _end_bits(role: Role) -> int:
    """Behind the last bit of a role, from the start of its page."""
    return role.base_bits + role.bits + sum((extent - 1) * step for *_, extent, step in role.terms)


class _Cut:
    """A role of which some heads are sent.

    Attributes:
        role: As the holder has it.
        first: Index on the axis `H` of the first head that is sent.
        shape: Extents of what is sent.
    """

    def __init__(self, role: Role, heads: tuple[int, int]) -> None:
        self.role = role
        self.first = heads[0] if "H" in role.shape else 0
        self.shape = dict(role.shape)
        if "H" in role.shape:
            self.shape["H"] = heads[1]


def _addresses(cut: _Cut) -> Bits:
    """Bits from where the page starts to each element, `[*axes]`."""
    axes = ROLES[cut.role.role].axes
    found = np.full([cut.shape[axis] for axis in axes], cut.role.base_bits, np.int64)
    for axis, div, extent, stride in cut.role.terms:
        first = cut.first if axis == "H" else 0
        digit = (np.arange(cut.shape[axis], dtype=np.int64) + first) // div % extent
        found += (digit * stride).reshape([-1 if each == axis else 1 for each in axes])
    return found


class _Ranks:
    """Where the bytes of the first page that is sent come in its part of the payload."""

    def __init__(self, group: Group, payload: Payload) -> None:
        self._group = group
        self._layer = payload.layers[0]
        found: dict[str, list[tuple[int, int]]] = {}
        sent = 0
        for pool, offset, num_bytes in payload.runs(0, self._layer):
            found.setdefault(pool, []).append((offset, sent))
            sent += num_bytes
        self._runs = {
            pool: tuple(np.array(column, np.int64) for column in zip(*sorted(runs), strict=True))
            for pool, runs in found.items()
        }

    def role(self, cut: _Cut) -> Role:
        """What is sent of a role, as it lies in the payload's page.

        Raises:
            Refused: No digits say where it is, or it has too many elements to find that out.
        """
        role = cut.role
        ends = np.array([role.base_bits, _end_bits(role) - 1], np.int64)
        if cut.shape == role.shape and len(set(self._runs_of(role, ends).tolist())) == 1:
            return replace(role, base_bits=int(self._ranks_of(role, ends)[0]))
        if prod(cut.shape.values()) > MAX_ELEMENTS:
            raise Refused(
                f"{short(self._group.id)}: a page has {prod(cut.shape.values())} elements of "
                f"{role.role}, more than {MAX_ELEMENTS}"
            )
        found = _described(cut, self._ranks_of(role, _addresses(cut)))
        if found is None:
            raise Refused(
                f"{short(self._group.id)}: no digits say where {role.role} is in what is sent"
            )
        return found

    def _runs_of(self, role: Role, bits: Bits) -> Bits:
        """Which of a pool's runs addresses in the holder's page are in."""
        pool, page = self._page(role)
        found: Bits = np.searchsorted(self._runs[pool][0], page + bits // 8, side="right") - 1
        return found

    def _ranks_of(self, role: Role, bits: Bits) -> Bits:
        """Addresses in the payload's page, by those in the holder's."""
        pool, page = self._page(role)
        offsets, ranks = self._runs[pool]
        run = self._runs_of(role, bits)
        found: Bits = 8 * (page + bits // 8 - offsets[run] + ranks[run]) + bits % 8
        return found

    def _page(self, role: Role) -> tuple[str, int]:
        """The pool of the page, and where it starts there."""
        place = self._group.places[role.place]
        pool = place.pools[self._layer if len(place.pools) > 1 else 0]
        return pool, place.offset + self._layer * place.layer_stride


def _described(cut: _Cut, bits: Bits) -> Role | None:
    """A role whose elements are at these bits, `[*axes]`; None where no digits say that."""
    axes = ROLES[cut.role.role].axes
    base = int(bits.flat[0])
    terms: list[Term] = []
    derived = np.full_like(bits, base)
    for number, axis in enumerate(axes):
        along = bits[tuple(slice(None) if at == number else 0 for at in range(len(axes)))] - base
        rows = _digits(along)
        if rows is None:
            return None
        terms += ((axis, *row) for row in rows)
        derived += along.reshape([-1 if at == number else 1 for at in range(len(axes))])
    if not np.array_equal(derived, bits):
        return None
    return replace(cut.role, shape=cut.shape, terms=tuple(terms), base_bits=base)


def _digits(along: Bits) -> list[tuple[int, int, int]] | None:
    """Rows (div, extent, stride) that give offsets along an axis; None where there are none."""
    rows: list[tuple[int, int, int]] = []
    count, div = len(along), 1
    while div < count:
        stride = int(along[div])
        if stride <= 0 or count % div:
            return None
        # The digits so far repeat at every further step of this one.
        steps = np.arange(count // div, dtype=np.int64) * stride
        differs = np.flatnonzero(along[::div] != steps)
        extent = int(differs[0]) if differs.size else count // div
        if count % (div * extent):
            return None
        rows.append((div, extent, stride))
        div *= extent
    known = np.zeros_like(along)
    index = np.arange(count, dtype=np.int64)
    for low, extent, stride in rows:
        known += index // low % extent * stride
    return rows if np.array_equal(known, along) else None
