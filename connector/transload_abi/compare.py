"""Whether one descriptor's blocks become another's: a verdict for each group, and the reason.

**Rules** are those of `connector/ABI.md`, section 8. Both descriptors are checked ones. Nothing
here looks at addresses, sizes of pools, block counts or engines' names.
"""

import math
from collections.abc import Iterator
from typing import Final, NamedTuple

from transload_abi.compare_fields import (
    Difference,
    Verdict,
    group_differences,
    model_differences,
)
from transload_abi.compare_words import (
    heads_words,
    layers_words,
    numbers_words,
    short,
    tokens_words,
)
from transload_abi.types import Descriptor, Group, TokenSlice

__all__ = ["Comparison", "Finding", "Match", "Verdict", "compare", "match_groups"]

VERDICTS: Final[tuple[Verdict, ...]] = ("identical", "lossless", "lossy", "refused")
"""Each worse than the one before."""


class Finding(NamedTuple):
    """The verdict on one group of the destination and one of the source.

    Attributes:
        src: Id of the source's group; empty where none holds any of the layers.
        dst: Id of the destination's group.
        layers: What both hold, in the destination's order.
        verdict: `identical`: pages may be copied as they are.
        path: The first of the fields with this verdict that differs, in the destination; empty
            where none does.
        reason: For an operator; empty where nothing differs.
    """

    src: str
    dst: str
    layers: tuple[int, ...]
    verdict: Verdict
    path: str
    reason: str


class Comparison(NamedTuple):
    """All verdicts from one source to one destination.

    Attributes:
        findings: One for each pair of groups between which something moves, in the order of the
            destination's groups. Where nothing moves at all: one `refused` for each of them.
        absent: Sentences on what the destination's groups hold and this source does not; other
            sources have to bring it.
    """

    findings: tuple[Finding, ...]
    absent: tuple[str, ...] = ()

    @property
    def verdict(self) -> Verdict:
        """The worst; `identical` where the destination takes no group at all."""
        worst = max((VERDICTS.index(each.verdict) for each in self.findings), default=0)
        return VERDICTS[worst]

    @property
    def refusal(self) -> Finding:
        """The first that is `refused`; to be asked for only where the verdict is."""
        return next(each for each in self.findings if each.verdict == "refused")


class Match(NamedTuple):
    """Two groups with layers in common.

    Attributes:
        src: Of the source.
        dst: Of the destination.
        layers: What both hold, in the destination's order.
    """

    src: Group
    dst: Group
    layers: tuple[int, ...]


def match_groups(src: Descriptor, dst: Descriptor) -> tuple[Match, ...]:
    """Pairs of transferable groups between which something would move.

    They have layers, heads and tokens in common. A layer that has several groups (attention and a
    recurrent state) is matched by what they hold; only where nothing fits, with whatever the
    source has and nobody else takes, so that the comparison can say what is wrong.
    """
    return tuple(match for match in _layer_matches(src, dst) if _has_common_slice(match))


def compare(src: Descriptor, dst: Descriptor) -> Comparison:
    """Judge every transferable group of the destination against the source's.

    Args:
        src: Whose blocks are read; checked.
        dst: Whose blocks are written; checked.
    """
    model = next(model_differences(src, dst), None)
    matches = match_groups(src, dst)
    if matches:
        findings = tuple(_finding(match, dst, model) for match in matches)
        return Comparison(findings, tuple(_absent(matches, dst)))
    layer_matches = _layer_matches(src, dst)
    findings = tuple(
        _refusal(group, src, layer_matches, _path(dst, group), model)
        for group in _transferable(dst)
    )
    return Comparison(findings)


def _finding(match: Match, dst: Descriptor, model: Difference | None) -> Finding:
    src_group, dst_group, layers = match
    found = list(group_differences(src_group, dst_group, layers, _path(dst, dst_group)))
    if model:
        found.insert(0, model)
    worst = max(found, key=lambda each: VERDICTS.index(each.verdict), default=None)
    if worst is None or _is_page_alike(found):
        return Finding(src_group.id, dst_group.id, layers, "identical", "", "")
    return Finding(src_group.id, dst_group.id, layers, worst.verdict, worst.path, worst.reason)


def _is_page_alike(found: list[Difference]) -> bool:
    """Whether all that differs is the kind, and that without consequence."""
    return all(each.field == "kind" and each.verdict == "lossless" for each in found)


def _refusal(
    group: Group,
    src: Descriptor,
    matches: tuple[Match, ...],
    path: str,
    model: Difference | None,
) -> Finding:
    """Why nothing at all moves to a group."""
    match = next((each for each in matches if each.dst is group), None)
    if model:
        at, reason = model.path, model.reason
    elif match is None:
        held = tuple(layer for each in src.groups for layer in each.layers)
        if any(set(group.layers) & set(each.layers) for each in src.groups):
            at, reason = f"{path}.layers", "the source does not transfer any of these layers"
        else:
            at = f"{path}.layers"
            reason = (
                "no layer in common: the source holds "
                f"{layers_words(held) if held else 'no layers'}, "
                f"the destination {numbers_words(group.layers)}"
            )
    else:
        at, reason = _slice_reason(match, path)
    src_id = match.src.id if match else ""
    return Finding(src_id, group.id, match.layers if match else (), "refused", at, reason)


def _slice_reason(match: Match, path: str) -> tuple[str, str]:
    ours, theirs = match.src.owner, match.dst.owner
    if not _has_common_heads(match):
        return (
            f"{path}.owner.heads",
            f"no head in common: the source holds {heads_words(ours.heads)}, "
            f"the destination {heads_words(theirs.heads)}",
        )
    return (
        f"{path}.owner.tokens",
        f"no token in common: the source holds {tokens_words(ours.tokens)}, "
        f"the destination {tokens_words(theirs.tokens)}",
    )


def _absent(matches: tuple[Match, ...], dst: Descriptor) -> Iterator[str]:
    for group in _transferable(dst):
        mine = [match for match in matches if match.dst is group]
        held = {layer for match in mine for layer in match.layers}
        missing = tuple(layer for layer in group.layers if layer not in held)
        if missing:
            yield f"{short(group.id)}: the source has nothing of {layers_words(missing)}"
        for match in mine:
            first, end, total = match.src.owner.heads
            heads = range(*group.owner.heads[:2])
            if total == group.owner.heads[2] and not (first <= heads.start and heads.stop <= end):
                yield (
                    f"{short(group.id)}: of {heads_words(group.owner.heads)} the source has "
                    f"{heads_words(match.src.owner.heads)}"
                )
            if not _holds_tokens(match.src.owner.tokens, group.owner.tokens):
                yield (
                    f"{short(group.id)}: of the tokens ({tokens_words(group.owner.tokens)}) "
                    f"the source has {tokens_words(match.src.owner.tokens)}"
                )


def _holds_tokens(src: TokenSlice, dst: TokenSlice) -> bool:
    """Whether a source has every token of a destination's slice, as far as that is plain."""
    return src.size == 1 or src == dst


# --- matching


def _transferable(descriptor: Descriptor) -> tuple[Group, ...]:
    return tuple(group for group in descriptor.groups if group.transferable)


def _path(dst: Descriptor, group: Group) -> str:
    return f"groups[{dst.groups.index(group)}]"


def _fits(src: Group, dst: Group) -> bool:
    """Whether two groups hold the same sort of thing: of that a layer holds each role once."""
    return _sort(src) == _sort(dst) and not _contents(src).isdisjoint(_contents(dst))


_SORTS: Final = ("cross", "recurrent", "ring", "sliding_window_mla")
"""Kinds that meet their own alone; all others are attention."""


def _sort(group: Group) -> str:
    return group.kind if group.kind in _SORTS else "attention"


def _contents(group: Group) -> set[tuple[str, str]]:
    """Roles; of pages that nobody describes, it is their writer that tells one from another."""
    return {(role.role, group.opaque if role.role == "page" else "") for role in group.roles}


def _layer_matches(src: Descriptor, dst: Descriptor) -> tuple[Match, ...]:
    sources, groups = _transferable(src), _transferable(dst)
    held = {source.id: frozenset(source.layers) for source in sources}
    fitting = {
        (source.id, group.id): tuple(layer for layer in group.layers if layer in held[source.id])
        for group in groups
        for source in sources
        if _fits(source, group)
    }
    src_taken = {(key[0], layer) for key, layers in fitting.items() for layer in layers}
    dst_served = {(key[1], layer) for key, layers in fitting.items() for layer in layers}
    matches = []
    for group in groups:
        for source in sources:
            layers = fitting.get((source.id, group.id)) or tuple(
                layer
                for layer in group.layers
                if layer in held[source.id]
                and (source.id, layer) not in src_taken
                and (group.id, layer) not in dst_served
            )
            if layers:
                matches.append(Match(source, group, layers))
    return tuple(matches)


def _has_common_slice(match: Match) -> bool:
    return _has_common_heads(match) and _have_common_token(
        match.src.owner.tokens, match.dst.owner.tokens
    )


def _has_common_heads(match: Match) -> bool:
    """Groups that count heads differently are left to the comparison."""
    a, b = match.src.owner.heads, match.dst.owner.heads
    return a[2] != b[2] or max(a[0], b[0]) < min(a[1], b[1])


def _have_common_token(a: TokenSlice, b: TokenSlice) -> bool:
    """Whether some token, of however long a request, lies on both ranks.

    A rank's tokens are runs of `interleave` that begin at `rank * interleave` and repeat after
    `interleave * size`. The starts of two ranks' runs differ by every number that is congruent to
    the difference of the first two, modulo the common divisor of the periods; two runs meet where
    that is above `-interleave` of the one and below that of the other.
    """
    step = math.gcd(a.interleave * a.size, b.interleave * b.size)
    apart = a.rank * a.interleave - b.rank * b.interleave
    least = 1 - a.interleave
    return least + (apart - least) % step < b.interleave
