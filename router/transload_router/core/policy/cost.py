"""The cheapest of all pairs, and of decode alone, by predicted seconds."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from msgspec.structs import replace

from transload_router.core.cost import CostModel
from transload_router.core.load import DestinationKey, EngineLoad, Load
from transload_router.core.policy.pricing import (
    Decode,
    Prefill,
    Prices,
    Weights,
    local_terms,
    split_terms,
)
from transload_router.core.policy.search import cheapest_pair
from transload_router.core.policy.types import (
    Ask,
    Chance,
    Decision,
    Destination,
    FleetView,
    Reason,
    Row,
    Terms,
)


@dataclass(slots=True)
class _Pool:
    """One pool's candidates, priced; the lists run in parallel."""

    destinations: Sequence[Destination]
    loads: list[EngineLoad]
    prefills: list[Prefill]
    decodes: list[Decode] = field(default_factory=list)
    is_full: list[bool] = field(default_factory=list)

    def open(self) -> list[int]:
        """Who may still take a request; everybody if nobody may."""
        spare = [index for index, is_full in enumerate(self.is_full) if not is_full]
        return spare or list(range(len(self.destinations)))


class CostPolicy:
    """Predicted seconds to the first token, with the price of what the request does to others.

    Args:
        load: Everybody's load; read, not changed.
        costs: Everybody's times; read.
        chance: Breaks ties.
        weights: What counts how much.
    """

    def __init__(
        self, load: Load, costs: CostModel, chance: Chance, weights: Weights | None = None
    ) -> None:
        self._load = load
        self._costs = costs
        self._chance = chance
        self._weights = weights if weights is not None else Weights()

    def choose(self, ask: Ask, view: FleetView, now: float) -> Decision | None:
        """See `Policy.choose`."""
        if not view.decode:
            return None
        self._costs.refresh(now)
        prices = Prices(ask, self._load, self._costs, self._weights, now)
        prefill, decode = self._price(ask, view, prices)
        if ask.handoff_from is not None:
            return self._choose_heir(ask.handoff_from, prices, decode)
        local, pair = self._cheapest(view, prices, prefill, decode)
        if pair is None:
            terms = local_terms(decode.prefills[local], decode.decodes[local])
            return Decision(None, view.decode[local], _why_local(ask, view), terms)
        p, d = pair
        link_s = prices.handoff_s(
            view.prefill[p].key, view.decode[d].key, decode.decodes[d].num_moved_tokens
        )
        terms = split_terms(prefill.prefills[p], link_s, decode.decodes[d])
        return Decision(view.prefill[p], view.decode[d], Reason.SPLIT, terms)

    def explain(self, ask: Ask, view: FleetView, now: float) -> list[Row]:
        """See `Policy.explain`; of the pairs, those that are the best for one of their ends."""
        if not view.decode:
            return []
        prices = Prices(ask, self._load, self._costs, self._weights, now)
        prefill, decode = self._price(ask, view, prices)
        if ask.handoff_from is not None:
            rows = list(_heir_rows(ask.handoff_from, prices, decode))
        else:
            rows = [*_local_rows(decode), *_pair_rows(view, prices, prefill, decode)]
        eligible = [row for row in rows if not row.is_overloaded] or rows
        best = min(eligible, key=lambda row: row.terms.total_s)
        return [replace(row, is_chosen=row is best) for row in rows]

    def _price(self, ask: Ask, view: FleetView, prices: Prices) -> tuple[_Pool, _Pool]:
        sources = view.prefill if ask.may_split and ask.handoff_from is None else ()
        source_loads, loads = prices.measure(sources), prices.measure(view.decode)
        prefill = _Pool(sources, source_loads, list(map(prices.prefill, sources, source_loads)))
        decode = _Pool(view.decode, loads, list(map(prices.prefill, view.decode, loads)))
        decode.decodes = list(map(prices.decode, view.decode, loads))
        factor = self._weights.load_factor
        for pool in (prefill, decode):
            pool.is_full = _beyond(pool, prices, factor)
        whole = prices.num_tokens + prices.num_answer
        most = factor * sum(load.num_tokens for load in loads) / len(loads) + whole
        for index, load in enumerate(loads):
            if load.num_tokens > most:
                decode.is_full[index] = True
        return prefill, decode

    def _cheapest(
        self, view: FleetView, prices: Prices, prefill: _Pool, decode: _Pool
    ) -> tuple[int, tuple[int, int] | None]:
        """The best destination to do both, and the best pair if that is cheaper still."""
        chance, prefills, decodes = self._chance, decode.prefills, decode.decodes
        able = decode.open()
        least = min(prefills[d].cost_s + decodes[d].cost_s for d in able)
        tie_s = self._weights.tie_share * least
        noise = {d: tie_s * chance() for d in able}
        limit, local = min((prefills[d].cost_s + decodes[d].cost_s + noise[d], d) for d in able)
        sources = [(prefill.prefills[p].cost_s + tie_s * chance(), p) for p in prefill.open()]
        if not sources:
            return local, None
        handed = {d: decodes[d].cost_s + decodes[d].queue_s + noise[d] for d in able}
        sinks = [
            (handed[d] + prices.least_handoff_s(view.decode[d].key, decodes[d].num_moved_tokens), d)
            for d in able
        ]
        costs = {p: cost for cost, p in sources}

        def pair_cost(p: int, d: int) -> float | None:
            one, other = view.prefill[p], view.decode[d]
            if one.key == other.key or not view.can_pair(one, other):
                return None
            link_s = prices.handoff_s(one.key, other.key, decodes[d].num_moved_tokens)
            return costs[p] + handed[d] + link_s

        found = cheapest_pair(sorted(sources), sorted(sinks), pair_cost, limit)
        return local, (None if found is None else found[:2])

    def _choose_heir(self, source: DestinationKey, prices: Prices, decode: _Pool) -> Decision:
        """Decode alone, from blocks that `source` has computed."""
        terms = {
            d: split_terms(None, prices.handoff_s(source, one.key, priced.num_moved_tokens), priced)
            for d, (one, priced) in enumerate(zip(decode.destinations, decode.decodes, strict=True))
        }
        able = decode.open()
        tie_s = self._weights.tie_share * min(terms[d].total_s for d in able)
        best = min(
            able, key={d: terms[d].total_s + tie_s * self._chance() for d in able}.__getitem__
        )
        return Decision(None, decode.destinations[best], Reason.HANDED_OFF, terms[best])


def _why_local(ask: Ask, view: FleetView) -> Reason:
    if not ask.may_split:
        return Reason.LOCAL_ONLY
    return Reason.LOCAL_CHEAPER if view.prefill else Reason.NO_PREFILL


def _beyond(pool: _Pool, prices: Prices, factor: float) -> list[bool]:
    """Whose promised prefill is beyond `factor` means and one whole prompt."""
    queues = [one.queue_s for one in pool.prefills]
    most = factor * sum(queues) / len(queues) if queues else 0.0
    return [
        queue_s > most and queue_s > most + prices.whole_prompt_s(one, load)
        for queue_s, one, load in zip(queues, pool.destinations, pool.loads, strict=True)
    ]


def _row(
    source: DestinationKey | None, sink: Destination, terms: Terms, *, is_overloaded: bool
) -> Row:
    return Row(
        prefill=source[0] if source is not None else None,
        prefill_rank=source[1] if source is not None else 0,
        decode=sink.key[0],
        decode_rank=sink.rank,
        is_overloaded=is_overloaded,
        terms=terms,
    )


def _local_rows(decode: _Pool) -> Iterator[Row]:
    for d, one in enumerate(decode.destinations):
        terms = local_terms(decode.prefills[d], decode.decodes[d])
        yield _row(None, one, terms, is_overloaded=decode.is_full[d])


def _heir_rows(source: DestinationKey, prices: Prices, decode: _Pool) -> Iterator[Row]:
    for d, one in enumerate(decode.destinations):
        priced = decode.decodes[d]
        link_s = prices.handoff_s(source, one.key, priced.num_moved_tokens)
        terms = split_terms(None, link_s, priced)
        yield _row(source, one, terms, is_overloaded=decode.is_full[d])


def _pair_rows(view: FleetView, prices: Prices, prefill: _Pool, decode: _Pool) -> Iterator[Row]:
    """Of every destination the best pair it is part of."""
    rank: dict[tuple[str, int], tuple[tuple[bool, float], Row]] = {}
    for p, one in enumerate(prefill.destinations):
        for d, other in enumerate(decode.destinations):
            if one.key == other.key or not view.can_pair(one, other):
                continue
            priced = decode.decodes[d]
            link_s = prices.handoff_s(one.key, other.key, priced.num_moved_tokens)
            terms = split_terms(prefill.prefills[p], link_s, priced)
            is_overloaded = prefill.is_full[p] or decode.is_full[d]
            worth = (is_overloaded, terms.total_s)
            for end in (("p", p), ("d", d)):
                if end not in rank or worth < rank[end][0]:
                    rank[end] = (worth, _row(one.key, other, terms, is_overloaded=is_overloaded))
    seen = set()
    for _worth, row in rank.values():
        ends = (row.prefill, row.prefill_rank, row.decode, row.decode_rank)
        if ends not in seen:
            seen.add(ends)
            yield row
