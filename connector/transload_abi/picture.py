"""A descriptor as a picture for people: a terminal's 100 columns, no more.

Says in words what `types` says in numbers; nothing reads it back.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Final

from transload_abi.canonical import canonical
from transload_abi.fingerprints import Fingerprints, of_descriptor, of_groups
from transload_abi.floats import read_float
from transload_abi.picture_overlays import element_bits, pool_notes
from transload_abi.picture_words import (
    layer_words,
    range_words,
    scale_words,
    size_words,
    times_words,
)
from transload_abi.roles import ROLES
from transload_abi.types import Descriptor, Group, Model, Owner, Place, Pool, Role

WIDTH: Final = 100
SHOWN_DIGITS: Final = 12
"""Of a fingerprint: two that differ agree in so many digits once in 10^14 pairs."""

_SHOWN_VALUES: Final = 4
_BETWEEN: Final = "   "


def describe(d: Descriptor) -> str:
    """The whole descriptor, checked before: model, pools, groups, and a map of each group's page.

    Lines are at most `WIDTH` columns unless a name is longer, and end with a newline each.
    """
    d = canonical(d)
    blocks = [_head(d), _pools(d.pools)]
    blocks += [
        f"{_group(group, found)}\n{page_map(group)}"
        for group, found in zip(d.groups, of_groups(d), strict=True)
    ]
    if notes := pool_notes(d):
        blocks.append(notes)
    return "\n\n".join(blocks) + "\n"


def page_map(group: Group) -> str:
    """What is where in a page: a row for the first run of each role, and how it goes on.

    A run is the innermost digit's elements; below it stands what repeats, innermost first.
    """
    words = _axis_words(group)
    rows = []
    for number, place in enumerate(group.places):
        if len(group.places) > 1:
            rows.append(f"  place {number}")
        roles = [role for role in group.roles if role.place == number]
        for role in sorted(roles, key=lambda role: role.base_bits):
            rows += _role_rows(role, words)
        rows += _pad_rows(place, roles)
    heading = _row("offset", "bytes", "role", "type", [words[axis] for axis in words])
    return "\n".join([heading, *rows])


def _head(d: Descriptor) -> str:
    model, producer = d.model, d.producer
    facts = [f"{d.abi}  {model.name}", f"{model.num_layers} layers", _rope(model)]
    if model.revision:
        facts.append(f"revision {model.revision}")
    if model.weights:
        facts.append(f"weights {model.weights[:7]}{model.weights[7 : 7 + SHOWN_DIGITS]}")
    if model.adapter:
        facts.append(f"adapter {model.adapter}")
    if model.kv_share:
        pairs = ", ".join(f"{reader} reads {owner}" for reader, owner in model.kv_share)
        facts.append(f"shared KV: layer {pairs}")
    made = [part for part in (producer.engine, producer.version) if part]
    made += [part for part in (producer.backend, producer.layout) if part]
    if made:
        facts.append(f"from {' '.join(made)}")
    return f"{_line(facts)}\n{_fingerprints(of_descriptor(d))}"


def _rope(model: Model) -> str:
    words = {
        "applied": "keys rotated",
        "not_applied": "keys not rotated",
        "none": "no rotary embedding",
        "unknown": "nobody says whether keys are rotated",
    }
    names = ", ".join(sorted(model.rope.params))
    return words[model.rope.state] + (f" ({names})" if names else "")


def _fingerprints(found: Fingerprints) -> str:
    shown = [f"{name} {digits[:SHOWN_DIGITS]}" for name, digits in found._asdict().items()]
    return _line(["  fingerprints", *shown])


def _pools(pools: Iterable[Pool]) -> str:
    lines = ["pools"]
    named = sorted(pools, key=lambda pool: _name_and_number(pool.id))
    for facts, alike in groupby(named, key=_alike):
        ids = [pool.id for pool in alike]
        shown = ids[0] if len(ids) == 1 else f"{ids[0]} to {ids[-1]}, {len(ids)} pools, each"
        lines.append(_line([f"  {shown}", *facts[1:]]))
    return "\n".join(lines)


def _name_and_number(pool_id: str) -> tuple[str, int]:
    """A pool's id in two parts, so that `k10` stands after `k9`."""
    name = pool_id.rstrip("0123456789")
    return name, int(pool_id[len(name) :] or 0)


def _alike(pool: Pool) -> tuple[str, ...]:
    return _name_and_number(pool.id)[0], *_pool_facts(pool)


def _pool_facts(pool: Pool) -> tuple[str, ...]:
    facts = (
        pool.memory,
        size_words(8 * pool.num_bytes),
        f"{pool.num_blocks} blocks",
        f"aligned to {size_words(8 * pool.align)}",
    )
    if not pool.block_bytes:
        return facts
    return *facts, f"a block is {size_words(8 * pool.block_bytes)} in one piece"


def _group(group: Group, fingerprints: Fingerprints) -> str:
    facts = [f"group {group.id}", group.kind, f"layers {layer_words(group.layers)}"]
    facts += _owner(group.owner, any("H" in role.shape for role in group.roles))
    facts += _tokens(group)
    facts.append(f"table {group.table}")
    if group.null_block is not None:
        facts.append(f"block {group.null_block} means not held")
    if not group.transferable:
        facts.append("not transferable")
    if group.opaque:
        facts.append(f"moved only as it is, nobody has shown what is inside: {group.opaque}")
    lines = [_line(facts), _fingerprints(fingerprints), _codec(group)]
    lines += [_place(group, number) for number in range(len(group.places))]
    return "\n".join(lines)


def _owner(owner: Owner, has_heads: bool) -> list[str]:
    first, end, total = owner.heads
    facts = []
    if has_heads:
        facts.append(f"heads {range_words(first, end)} of {total}")
    tokens = owner.tokens
    if tokens.size > 1:
        facts.append(f"tokens of rank {tokens.rank} of {tokens.size}, {tokens.interleave} in a row")
    number, count = owner.replica
    if count > 1:
        facts.append(f"replica {number} of {count}")
    return facts


def _tokens(group: Group) -> list[str]:
    facts = [f"{group.tokens_per_block} tokens per block"]
    tokens, states = group.tokens_per_state
    if group.kind == "recurrent":
        facts = ["one state for all tokens so far"]
    elif states > 1 or tokens > 1:
        facts.append(f"{times_words(states, 'state')} for {times_words(tokens, 'token')}")
    if group.window:
        name = {"chunked_local": "chunk", "ring": "ring"}.get(group.kind, "window")
        facts.append(f"{name} of {group.window} tokens")
    return facts


def _codec(group: Group) -> str:
    facts = [f"  codec {group.codec.id}"]
    for name, value in sorted(group.codec.params.items()):
        values = [_value(each) for each in (value if isinstance(value, list) else [value])]
        if len(set(values)) == 1:
            values = values[:1] + (["in all layers"] if len(values) > 1 else [])
        elif len(values) > _SHOWN_VALUES:
            values = [*values[: _SHOWN_VALUES - 1], "...", values[-1]]
        facts.append(f"{name} {' '.join(values)}")
    return _line(facts)


def _value(value: int | str) -> str:
    text = str(value)
    if text.startswith("f32:"):
        return scale_words(read_float(text))
    return text[: 7 + SHOWN_DIGITS] if text.startswith("sha256:") else text


def _place(group: Group, number: int) -> str:
    """Where a page starts, as a sum."""
    place = group.places[number]
    steps = [f"block x {size_words(8 * place.block_stride)}"]
    if place.layer_stride:
        steps.append(f"layer position x {size_words(8 * place.layer_stride)}")
    name = "page" if len(group.places) == 1 else f"page in place {number}"
    pools = place.pools[0]
    if len(place.pools) > 1:
        pools = f"{pools} to {place.pools[-1]}, a pool for each layer"
    start = " + ".join([_offset(8 * place.offset), *steps])
    facts = [f"  {name} at {start} of {pools}"]
    if place.page_bytes:
        facts.append(f"owns {size_words(8 * place.page_bytes)}")
    else:
        facts.append("interleaved with others")
    return _line(facts)


def _axis_words(group: Group) -> dict[str, str]:
    """The axes that any role has, and what an index on them counts."""
    words = {"H": "head", "N": "token", "D": "element", "G": "group"}
    if group.tokens_per_state != (1, 1):
        words["N"] = "state"
    held = {axis for role in group.roles for axis in ROLES[role.role].axes}
    return {axis: word for axis, word in words.items() if axis in held}


def _role_rows(role: Role, words: dict[str, str]) -> list[str]:
    digits = sorted(role.terms, key=lambda term: term[3])
    run, inner = role.bits, None
    if digits and digits[0][3] == role.bits:
        inner, digits = digits[0], digits[1:]
        run *= inner[2]
    cells = []
    for axis in words:
        _, div, extent, _ = inner if inner is not None and inner[0] == axis else (axis, 1, 1, 0)
        run_words = f"0-{(extent - 1) * div} by {div}" if div > 1 else range_words(0, extent)
        cells.append(run_words if axis in role.shape else "")
    rows = [_row(_offset(role.base_bits), size_words(run), role.role, role.dtype, cells)]
    for axis, div, extent, stride in digits:
        what = times_words(extent, words[axis])
        if div > 1:
            what = f"{times_words(extent, 'step')} of {times_words(div, words[axis])}"
        rows.append(f"{'':46}... {what}, {size_words(stride)} apart")
    return rows


def _pad_rows(place: Place, roles: Sequence[Role]) -> list[str]:
    """What a page owns beyond its elements: at its end, and between them."""
    if not place.page_bytes:
        return []
    end = max((_span(role) for role in roles), default=0)
    tail = 8 * place.page_bytes - end
    inside = end - sum(element_bits(role) for role in roles)
    rows = []
    if inside:
        rows.append(_row("", size_words(inside), "pad", "", ["between them"]))
    if tail:
        rows.append(_row(_offset(end), size_words(tail), "pad", "", ["to the page's end"]))
    return rows


def _span(role: Role) -> int:
    """The bit after the role's last element."""
    steps = sum((extent - 1) * stride for _, _, extent, stride in role.terms)
    return role.base_bits + role.bits + steps


def _offset(bits: int) -> str:
    whole, rest = divmod(bits, 8)
    return f"0x{whole:06x}" + (f".{rest}" if rest else "")


def _row(offset: str, size: str, role: str, dtype: str, cells: Sequence[str]) -> str:
    columns = "  ".join(f"{cell:<9}" for cell in cells)
    return f"  {offset:<10}{size:>9}  {role:<14}{dtype:<9}{columns}".rstrip()


def _line(facts: Sequence[str]) -> str:
    """Facts side by side, and on further lines where they do not fit, indented."""
    indent = " " * (4 + len(facts[0]) - len(facts[0].lstrip()))
    lines = [facts[0]]
    for fact in facts[1:]:
        if len(lines[-1]) + len(_BETWEEN) + len(fact) <= WIDTH:
            lines[-1] += _BETWEEN + fact
        else:
            lines += textwrap.wrap(
                fact,
                WIDTH,
                initial_indent=indent,
                subsequent_indent=indent,
                break_long_words=False,
                break_on_hyphens=False,
            )
    return "\n".join(lines)
