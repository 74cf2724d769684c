"""The cheapest of all pairs, and of decode alone, by predicted seconds."""

from collections.abc import Iterator

from msgspec.structs import replace

from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy.pricing import (
    Prices,
    Weights,
    breach_weight,
    local_terms,
    split_terms,
)
from transload_router.core.policy.quotes import Quotes
from transload_router.core.policy.scan import Scan
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
from transload_router.core.types import DestinationKey


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
        self._quotes = Quotes(load, costs)

    def choose(self, ask: Ask, view: FleetView, now: float) -> Decision | None:
        """See `Policy.choose`."""
        if not view.decode:
            return None
        self._costs.refresh(now)
        prices, prefill, decode = self._scan(ask, view, now)
        if ask.handoff_from is not None:
            sink = self._heir(ask.handoff_from, prices, decode)
            terms = _split(prices, None, ask.handoff_from, sink, self._load)
            return Decision(None, sink, Reason.HANDED_OFF, terms)
        local, pair = self._cheapest(view, prices, prefill, decode)
        if pair is None:
            terms = _local(prices, view.decode[local], self._load)
            return Decision(None, view.decode[local], _why_local(ask, view), terms)
        source, sink = view.prefill[pair[0]], view.decode[pair[1]]
        terms = _split(prices, source, source.key, sink, self._load)
        return Decision(source, sink, Reason.SPLIT, terms)

    def explain(self, ask: Ask, view: FleetView, now: float) -> list[Row]:
        """See `Policy.explain`; of the pairs, those that are the best for one of their ends."""
        if not view.decode:
            return []
        prices, prefill, decode = self._scan(ask, view, now)
        if ask.handoff_from is not None:
            rows = list(_heir_rows(ask.handoff_from, prices, decode, self._load))
        else:
            rows = list(_local_rows(prices, decode, self._load))
            rows.extend(_pair_rows(view, prices, prefill, decode, self._load))
        eligible = [row for row in rows if not row.is_overloaded] or rows
        best = min(eligible, key=lambda row: row.terms.total_s)
        return [replace(row, is_chosen=row is best) for row in rows]

    def forget(self, engine_id: str) -> None:
        """See `Policy.forget`."""
        self._quotes.forget(engine_id)

    def _scan(self, ask: Ask, view: FleetView, now: float) -> tuple[Prices, Scan, Scan]:
        sources = view.prefill if ask.may_split and ask.handoff_from is None else ()
        prefill = Scan(sources, self._quotes.of(sources), now)
        decode = Scan(view.decode, self._quotes.of(view.decode), now)
        weights = self._weights
        weight = breach_weight(weights, prefill.queues)
        prices = Prices(ask, self._load, self._costs, weights, now, breach_weight=weight)
        for pool in (prefill, decode):
            pool.price_prefill(prices, weights)
            pool.bound(prices, weights, is_decode=pool is decode)
        decode.price_decode(prices, weights)
        return prices, prefill, decode

    def _cheapest(
        self, view: FleetView, prices: Prices, prefill: Scan, decode: Scan
    ) -> tuple[int, tuple[int, int] | None]:
        """The best destination to do both, and the best pair if that is cheaper still."""
        chance, computing, writing = self._chance, decode.computing, decode.writing
        able = decode.open()
        tie_s = self._weights.tie_share * min([computing[d] + writing[d] for d in able])
        costs = {d: writing[d] + tie_s * chance() for d in able}
        limit, local = min([(computing[d] + costs[d], d) for d in able])
        sources = [(prefill.computing[p] + tie_s * chance(), p) for p in prefill.open()]
        if not sources:
            return local, None
        least, queues, moved = prices.least_handoff_s, decode.queues, decode.moved
        sinks = [(costs[d] + queues[d] + least(view.decode[d].key, moved[d]), d) for d in able]
        source_costs = {p: cost for cost, p in sources}

        def pair_cost(p: int, d: int) -> float | None:
            one, other = view.prefill[p], view.decode[d]
            if one.key == other.key or not view.can_pair(one, other):
                return None
            link_s = prices.handoff_s(one.key, other.key, moved[d])
            return source_costs[p] + (costs[d] + queues[d] + link_s)

        found = cheapest_pair(sorted(sources), sorted(sinks), pair_cost, limit)
        return local, (None if found is None else found[:2])

    def _heir(self, source: DestinationKey, prices: Prices, decode: Scan) -> Destination:
        """Who goes on from blocks that `source` has computed."""
        costs = {
            d: decode.writing[d]
            + decode.queues[d]
            + prices.handoff_s(source, decode.destinations[d].key, decode.moved[d])
            for d in decode.open()
        }
        tie_s = self._weights.tie_share * min(costs.values())
        _cost, best = min((cost + tie_s * self._chance(), d) for d, cost in costs.items())
        return decode.destinations[best]


def _local(prices: Prices, one: Destination, load: Load) -> Terms:
    live = load.of(one.engine, one.rank)
    return local_terms(prices.prefill(one, live), prices.decode(one, live))


def _split(
    prices: Prices, source: Destination | None, key: DestinationKey, sink: Destination, load: Load
) -> Terms:
    answer = prices.decode(sink, load.of(sink.engine, sink.rank))
    computed = None
    if source is not None:
        computed = prices.prefill(source, load.of(source.engine, source.rank))
    return split_terms(computed, prices.handoff_s(key, sink.key, answer.num_moved_tokens), answer)


def _why_local(ask: Ask, view: FleetView) -> Reason:
    if not ask.may_split:
        return Reason.LOCAL_ONLY
    return Reason.LOCAL_CHEAPER if view.prefill else Reason.NO_PREFILL


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


def _local_rows(prices: Prices, decode: Scan, load: Load) -> Iterator[Row]:
    for d, one in enumerate(decode.destinations):
        yield _row(None, one, _local(prices, one, load), is_overloaded=decode.is_full[d])


def _heir_rows(source: DestinationKey, prices: Prices, decode: Scan, load: Load) -> Iterator[Row]:
    for d, one in enumerate(decode.destinations):
        terms = _split(prices, None, source, one, load)
        yield _row(source, one, terms, is_overloaded=decode.is_full[d])


def _pair_rows(
    view: FleetView, prices: Prices, prefill: Scan, decode: Scan, load: Load
) -> Iterator[Row]:
    """Of every destination the best pair it is part of."""
    best: dict[tuple[str, int], tuple[bool, float, int, int]] = {}
    for p, one in enumerate(prefill.destinations):
        for d, other in enumerate(decode.destinations):
            if one.key == other.key or not view.can_pair(one, other):
                continue
            cost = prefill.computing[p] + decode.queues[d] + decode.writing[d]
            cost += prices.handoff_s(one.key, other.key, decode.moved[d])
            worth = (prefill.is_full[p] or decode.is_full[d], cost, p, d)
            for end in (("prefill", p), ("decode", d)):
                if end not in best or worth < best[end]:
                    best[end] = worth
    for is_full, _cost, p, d in sorted(set(best.values())):
        source, sink = prefill.destinations[p], decode.destinations[d]
        terms = _split(prices, source, source.key, sink, load)
        yield _row(source.key, sink, terms, is_overloaded=is_full)
