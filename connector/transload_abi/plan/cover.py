"""Several sources for one destination: who gives which layers, heads and tokens."""

from collections.abc import Iterable, Sequence
from math import lcm
from typing import Final

from transload_abi.compare import match_groups
from transload_abi.compare_fields import model_differences
from transload_abi.compare_words import short
from transload_abi.errors import LimitExceeded, PlanError, Refused
from transload_abi.plan.narrow import Take, narrowed
from transload_abi.plan.pair import Pair, check_verdict
from transload_abi.plan.pieces import Blocks, checked
from transload_abi.plan.types import Plan
from transload_abi.types import Descriptor, Group, TokenSlice

MAX_PERIOD: Final = 1 << 16
"""Tokens after which the slices of all ranks repeat; 64 ranks of 1,024 tokens each."""

Offer = tuple[int, int, int, int, int, int]
"""Destination's group, layer, first head, end, tokens of the period as bits, source's group."""

Taken = tuple[int, int, int, int]
"""Destination's group, layer, first head, end."""


class Cover:
    """Sources that together hold all that a destination takes. Immutable.

    Attributes:
        sources: For each source the part of its descriptor that is read here, None where nothing
            is. A plan from that source is one from this descriptor. Of a layer that is cut into
            several ranges of heads, each is a group.
        pairs: Each of these with the destination.
        parts: Ordinal and number of the shares that replicas make of the destination's blocks.
    """

    __slots__ = ("pairs", "parts", "sources")

    sources: tuple[Descriptor | None, ...]
    pairs: tuple[Pair | None, ...]
    parts: tuple[tuple[int, int], ...]

    def __init__(
        self,
        sources: tuple[Descriptor | None, ...],
        pairs: tuple[Pair | None, ...],
        parts: tuple[tuple[int, int], ...],
    ) -> None:
        self.sources = sources
        self.pairs = pairs
        self.parts = parts

    @classmethod
    def compile(
        cls, sources: Sequence[Descriptor], dst: Descriptor, *, allow_lossy: bool = False
    ) -> "Cover":
        """Choose who gives what.

        Sources that hold the same of what the destination takes are replicas and give equal shares
        of its blocks; which replica begins depends on the destination's own replica ordinal. Of
        others that overlap the first gives what it has, the rest what is still missing; a source
        with more of the tokens comes before one with fewer.

        Args:
            sources: Checked; their order is that of `plan`'s lists.
            dst: Checked.
            allow_lossy: Whether numbers may be rounded.

        Raises:
            Refused: A source cannot be converted, or something is missing; it is named.
            LimitExceeded: The ranks' slices of the tokens repeat after too many tokens.
        """
        for source in sources:
            _check_source(source, dst, allow_lossy=allow_lossy)
        need = _Need(dst, _period([*sources, dst]))
        classes: dict[frozenset[Offer], list[int]] = {}
        offers = [need.offers(source) for source in sources]
        for number, offer in enumerate(offers):
            key = frozenset((*row[:5], 0) for row in offer)
            classes.setdefault(key, []).append(number)
        parts = [(0, 1)] * len(sources)
        parted: list[Descriptor | None] = [None] * len(sources)
        turn = _replica(dst)
        taken: dict[frozenset[Offer], list[Taken]] = {offered: [] for offered in classes}
        for offered, row in sorted(_rows(classes), key=_fewer_tokens):
            taken[offered] += need.take(row)
        for offered, members in classes.items():
            for at, number in enumerate(members):
                parts[number] = ((at + turn) % len(members), len(members))
                parted[number] = _part(sources[number], offers[number], taken[offered])
        need.check_nothing_missing()
        pairs = tuple(
            Pair.compile(part, dst, allow_lossy=allow_lossy) if part else None for part in parted
        )
        return cls(tuple(parted), pairs, tuple(parts))

    def plan(self, blocks: Blocks | Sequence[Blocks]) -> list[Plan | None]:
        """What each source moves for one request; None for those that move nothing.

        Args:
            blocks: Of all sources, if their ranks share their block tables; else of each, with the
                same counts and the same lists of the destination.

        Raises:
            PlanError: Lists or counts that do not fit; the path names the list.
        """
        each = [blocks] * len(self.pairs) if isinstance(blocks, Blocks) else list(blocks)
        if len(each) != len(self.pairs):
            raise PlanError(f"blocks of {len(each)} sources came for {len(self.pairs)}", "blocks")
        _check_one_request([one for pair, one in zip(self.pairs, each, strict=True) if pair])
        plans: list[Plan | None] = []
        used: dict[int, set[int]] = {}
        for pair, part, one in zip(self.pairs, self.parts, each, strict=True):
            plan = pair.plan_beside(used, one, part) if pair else None
            is_empty = plan is None or not any(batch.sequences for batch in plan.batches)
            plans.append(None if is_empty else plan)
        return plans


def _check_one_request(each: Sequence[Blocks]) -> None:
    """Refuse blocks that are not of one destination: parts of several would make none."""
    lists: dict[int, list[int]] = {}
    for one in {id(one): one for one in each}.values():
        if one[2:] != each[0][2:]:
            raise PlanError("sources are told of other counts of tokens", "blocks")
        for table, ids in checked(one).dst.items():
            if lists.setdefault(table, list(ids)) != list(ids):
                raise PlanError("sources are told of other blocks", f"blocks.dst[{table}]")


def _rows(classes: Iterable[frozenset[Offer]]) -> list[tuple[frozenset[Offer], Offer]]:
    """All that is offered, by who offers it."""
    return [(offered, row) for offered in classes for row in sorted(offered)]


def _fewer_tokens(offered: tuple[frozenset[Offer], Offer]) -> int:
    """Sorts those that have more of the tokens before others: parts of slices are not taken."""
    return -offered[1][4].bit_count()


def _check_source(source: Descriptor, dst: Descriptor, *, allow_lossy: bool) -> None:
    """Refuse a source that cannot be converted; one that has nothing of interest is none of it."""
    differs = next(model_differences(source, dst), None)
    if differs:
        raise Refused(differs.reason, differs.path)
    if match_groups(source, dst):
        check_verdict(source, dst, allow_lossy=allow_lossy)


class _Need:
    """What is still missing of a destination, by group and layer.

    Each entry is a list of (first head, end, missing tokens of the period as bits).
    """

    def __init__(self, dst: Descriptor, period: int) -> None:
        self._dst = dst
        self._period = period
        self._missing: dict[tuple[int, int], list[tuple[int, int, int]]] = {}
        for number, group in enumerate(dst.groups):
            if group.transferable:
                whole = (*group.owner.heads[:2], _bits(group.owner.tokens, period))
                self._missing |= {(number, layer): [whole] for layer in group.layers}

    def offers(self, source: Descriptor) -> list[Offer]:
        """What a source has of all that the destination takes."""
        found = []
        for match in match_groups(source, self._dst):
            ours, theirs = match.src.owner, match.dst.owner
            number = self._dst.groups.index(match.dst)
            heads = max(ours.heads[0], theirs.heads[0]), min(ours.heads[1], theirs.heads[1])
            tokens = _bits(ours.tokens, self._period) & _bits(theirs.tokens, self._period)
            group = source.groups.index(match.src)
            found += [(number, layer, *heads, tokens, group) for layer in match.layers]
        return found

    def take(self, offer: Offer) -> list[Taken]:
        """Take what is missing.

        Of heads of which some of the offered tokens are there already nothing is taken.
        """
        number, layer, first, end, tokens, _ = offer
        taken: list[Taken] = []
        rest: list[tuple[int, int, int]] = []
        for low, high, missing in self._missing[number, layer]:
            begin, stop = max(low, first), min(high, end)
            if begin >= stop or tokens & ~missing:
                rest.append((low, high, missing))
                continue
            taken.append((number, layer, begin, stop))
            spans = [
                (low, begin, missing),
                (begin, stop, missing & ~tokens),
                (stop, high, missing),
            ]
            rest += [span for span in spans if span[0] < span[1] and span[2]]
        self._missing[number, layer] = rest
        return taken

    def check_nothing_missing(self) -> None:
        """Refuse if anything is missing; the message names layers and heads."""
        for (number, _), spans in self._missing.items():
            for first, end, tokens in spans:
                group = self._dst.groups[number]
                layers = [
                    one
                    for one in group.layers
                    if any(span == (first, end, tokens) for span in self._missing[number, one])
                ]
                what = _words(group, first, end, tokens, self._period)
                raise Refused(
                    f"{short(group.id)}: no source has {what} of layers {_listed(layers)}",
                    f"groups[{number}]",
                )


def _words(group: Group, first: int, end: int, tokens: int, period: int) -> str:
    heads = "anything" if group.owner.heads[2] == 1 else f"heads {first} to {end - 1}"
    whole = _bits(group.owner.tokens, period)
    if tokens == whole:
        return heads
    one = (tokens & -tokens).bit_length() - 1
    return f"token {one} and others of each {period}, {heads},"


def _listed(layers: list[int]) -> str:
    words = ", ".join(map(str, layers[:16]))
    return f"{words} and {len(layers) - 16} more" if len(layers) > 16 else words


def _part(source: Descriptor, offers: list[Offer], taken: list[Taken]) -> Descriptor | None:
    """The part of a source that is taken; the source itself where all that it offers is."""
    if not taken:
        return None
    if sorted(taken) == sorted(row[:4] for row in offers):
        return source
    holders = {row[:2]: row[5] for row in offers}
    layers: dict[tuple[int, int, int], list[int]] = {}
    for number, layer, first, end in taken:
        layers.setdefault((holders[number, layer], first, end), []).append(layer)
    return narrowed(
        source,
        [
            Take(source.groups[group], tuple(each), (first, end))
            for (group, first, end), each in layers.items()
        ],
    )


def _replica(dst: Descriptor) -> int:
    """The destination's ordinal among those that hold the same."""
    return max((group.owner.replica[0] for group in dst.groups if group.transferable), default=0)


def _period(descriptors: Sequence[Descriptor]) -> int:
    """Tokens after which all slices repeat."""
    slices = [
        group.owner.tokens for d in descriptors for group in d.groups if group.owner.tokens.size > 1
    ]
    period = lcm(*(each.interleave * each.size for each in slices))
    if period > MAX_PERIOD:
        raise LimitExceeded(f"the ranks' tokens repeat after {period}, more than {MAX_PERIOD}")
    return period


def _bits(tokens: TokenSlice, period: int) -> int:
    """A rank's tokens of a period, as the bits of an integer."""
    if tokens.size == 1:
        return (1 << period) - 1
    run = ((1 << tokens.interleave) - 1) << (tokens.rank * tokens.interleave)
    # The quotient has a bit at the start of each cycle.
    return run * (((1 << period) - 1) // ((1 << (tokens.interleave * tokens.size)) - 1))
