"""Placements and slices in an operator's words, derived from terms and strides alone."""

import sys
from collections import Counter
from typing import Final, NamedTuple

from transload_abi.canonical import Term, canonical_terms
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Group, Role, TokenSlice

AXIS_WORDS: Final = {"H": "head", "N": "token", "D": "element", "G": "scale"}
SHORT_WORDS: Final = {
    "k": "K",
    "v": "V",
    "k_scale": "K scales",
    "v_scale": "V scales",
    "k_group_scale": "K group scales",
    "v_group_scale": "V group scales",
    "k_code": "K codes",
    "k_norm": "K norms",
    "v_code": "V codes",
    "v_zero": "V zeros",
    "latent": "latent",
    "latent_scale": "latent scales",
    "rope": "rope",
    "index_k": "index K",
    "index_k_scale": "index K scales",
    "position": "positions",
    "state_kv": "KV to compress",
    "state_score": "their scores",
    "index_state_kv": "index KV to compress",
    "index_state_score": "index scores",
    "conv": "conv",
    "ssm": "ssm",
    "ssm_h": "ssm by head",
    "conv_q": "conv Q",
    "conv_k": "conv K",
    "conv_v": "conv V",
    "conv_x": "conv X",
    "conv_b": "conv B",
    "conv_c": "conv C",
    "page": "whole pages",
}
"""Of roles, for tables."""


MAX_RUNS: Final = 16
"""Of numbers that are told one by one."""


def short(text: str) -> str:
    """A stranger's text for a message, at most `limits.MAX_QUOTED_CHARS` of it."""
    return text if len(text) <= MAX_QUOTED_CHARS else f"{text[: MAX_QUOTED_CHARS - 3]}..."


class _Step(NamedTuple):
    """One loop of a placement: its name and bits from one turn to the next."""

    name: str
    stride: int


def shared_orders(
    src: Group, a: Role, dst: Group, b: Role
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The loops of a role on either side, outermost first, as far as they can be compared.

    What has extent 1 on one side is left out on both; so are layers and blocks where they lie
    outside of all else, since pages do not depend on that.
    """
    orders = [tuple(step.name for step in _steps(*each)) for each in ((src, a), (dst, b))]
    kinds = [{_axis_of(name) for name in each} for each in orders]
    ours, theirs = (
        tuple(name for name in each if _axis_of(name) in kinds[0] & kinds[1]) for each in orders
    )
    pages = _in_page(ours), _in_page(theirs)
    if ours[-len(pages[0]) :] == pages[0] and theirs[-len(pages[1]) :] == pages[1]:
        return pages
    return ours, theirs


def _in_page(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(name for name in names if name not in ("layer", "block"))


def _axis_of(name: str) -> str:
    return name.partition("%")[0].partition("/")[0]


def layout_words(group: Group) -> str:
    """The whole placement: `[layer, block, head, token, K|V, element]`.

    Roles of one order are told at once: with a mark where they part, or as apart where they lie in
    places of their own; roles of different orders are told one after the other.
    """
    return _layout(group, None)


def shared_marks(src: Group, dst: Group) -> tuple[str, str]:
    """Where roles part on either side, among the loops in the page that both sides have."""
    ours, theirs = (
        {_axis_of(step.name) for role in group.roles for step in _steps(group, role)}
        for group in (src, dst)
    )
    axes = frozenset((ours & theirs) - {"layer", "block"})
    return _layout(src, axes), _layout(dst, axes)


def _layout(group: Group, axes: frozenset[str] | None) -> str:
    clusters: dict[tuple[str, ...], list[Role]] = {}
    for role in sorted(group.roles, key=lambda role: role.role):
        names = tuple(step.name for step in _steps(group, role))
        clusters.setdefault(names, []).append(role)
    return "; ".join(_cluster_words(group, roles, axes) for roles in clusters.values())


def _cluster_words(group: Group, roles: list[Role], axes: frozenset[str] | None) -> str:
    """Roles whose loops have the same names in the same order."""
    steps = [
        step for step in _steps(group, roles[0]) if axes is None or _axis_of(step.name) in axes
    ]
    names = [step.name for step in steps]
    titles = [SHORT_WORDS[role.role] for role in sorted(roles, key=lambda role: role.base_bits)]
    if len({role.place for role in roles}) > 1:
        return f"{' and '.join(sorted(titles))} apart [{', '.join(names)}]"
    if len(roles) == 1:
        return f"{titles[0]} [{', '.join(names)}]"
    bases = [role.base_bits for role in roles]
    num_outer = sum(step.stride > max(bases) - min(bases) for step in steps)
    names.insert(num_outer, "|".join(titles))
    return f"[{', '.join(names)}]"


def _steps(group: Group, role: Role) -> list[_Step]:
    place = group.places[role.place]
    steps = [_Step("block", 8 * place.block_stride)]
    if len(place.pools) > 1:
        steps.append(_Step("layer", sys.maxsize))
    elif len(group.layers) > 1:
        steps.append(_Step("layer", 8 * place.layer_stride))
    terms = canonical_terms(role)
    counts = Counter(term[0] for term in terms)
    steps.extend(_Step(_digit_words(term, counts[term[0]]), term[3]) for term in terms)
    return sorted(steps, key=lambda step: -step.stride)


def _digit_words(term: Term, num_digits: int) -> str:
    axis, div, extent, _ = term
    name = AXIS_WORDS[axis]
    if num_digits == 1:
        return name
    return f"{name}%{extent}" if div == 1 else f"{name}/{div}"


def pool_words(group: Group) -> str:
    """`one pool`, `a pool for each layer`, or of how many places."""
    pools = [pool for place in group.places for pool in place.pools]
    num_pools = len(set(pools))
    if num_pools == 1:
        return "one pool"
    return f"{num_pools} pools" if len(group.places) > 1 else "a pool for each layer"


def numbers_words(numbers: tuple[int, ...]) -> str:
    """Whole numbers with runs drawn together: `0-3, 7`; of very many runs the first."""
    runs: list[list[int]] = []
    for number in sorted(numbers):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs[:MAX_RUNS])
    rest = sum(b - a + 1 for a, b in runs[MAX_RUNS:])
    return f"{words} and {rest} more" if rest else words


def layers_words(layers: tuple[int, ...]) -> str:
    """`layer 3`, `layers 0-3, 7`."""
    return f"{'layer' if len(layers) == 1 else 'layers'} {numbers_words(layers)}"


def heads_words(heads: tuple[int, int, int]) -> str:
    """`heads 0-3 of 8`."""
    first, end, total = heads
    held = f"{first}-{end - 1}" if end - first > 1 else f"{first}"
    return f"heads {held} of {total}"


def tokens_words(tokens: TokenSlice) -> str:
    """`all`, or which part of them: `run 1 of every 4 runs of 16 tokens`."""
    if tokens.size == 1:
        return "all"
    if tokens.interleave == 1:
        return f"token {tokens.rank} of every {tokens.size}"
    return f"run {tokens.rank} of every {tokens.size} runs of {tokens.interleave} tokens"
