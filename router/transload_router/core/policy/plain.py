"""Policies of one plain rule: the first pair in the rule's order that may be formed."""

from collections.abc import Iterable

from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy.orders import Order
from transload_router.core.policy.pricing import (
    Prices,
    Weights,
    breach_weight,
    local_terms,
    split_terms,
)
from transload_router.core.policy.types import (
    Ask,
    Decision,
    Destination,
    FleetView,
    Reason,
    Row,
    Terms,
)
from transload_router.core.types import Role


class PlainPolicy:
    """Prefill and decode by one rule; splits whatever may be split.

    Where both legs fall to the same destination, it does both. The terms tell what is expected;
    they decide nothing.
    """

    def __init__(self, order: Order, load: Load, costs: CostModel) -> None:
        self._order = order
        self._load = load
        self._costs = costs

    def choose(self, ask: Ask, view: FleetView, now: float) -> Decision | None:
        """See `Policy.choose`."""
        chosen = self._first(ask, view)
        if chosen is None:
            return None
        prefill, decode, reason = chosen
        self._order.note_choice(Role.DECODE)
        if prefill is not None:
            self._order.note_choice(Role.PREFILL)
        prices = self._prices(ask, view, now)
        return Decision(prefill, decode, reason, self._terms(ask, prices, prefill, decode))

    def explain(self, ask: Ask, view: FleetView, now: float) -> list[Row]:
        """See `Policy.explain`: every prefill with the chosen decode, and the other way round."""
        chosen = self._first(ask, view)
        if chosen is None:
            return []
        prefill, decode, _reason = chosen
        others: list[tuple[Destination | None, Destination]] = [
            (one, decode) for one in view.prefill if prefill is not None and one is not prefill
        ]
        others += [(prefill, one) for one in view.decode if one is not decode]
        prices = self._prices(ask, view, now)
        rows = [self._row(ask, prices, prefill, decode, is_chosen=True)]
        for one, other in others:
            if one is None or (one.key != other.key and view.can_pair(one, other)):
                rows.append(self._row(ask, prices, one, other, is_chosen=False))
        return rows

    def forget(self, engine_id: str) -> None:
        """See `Policy.forget`: plain rules keep nothing of engines."""

    def _prices(self, ask: Ask, view: FleetView, now: float) -> Prices:
        weights = Weights()
        queues = [
            self._costs.of(one.key).queue_s(self._load.of(one.engine, one.rank), now)
            for one in (view.prefill if ask.may_split else ())
        ]
        weight = breach_weight(weights, queues)
        return Prices(ask, self._load, self._costs, weights, now, breach_weight=weight)

    def _first(
        self, ask: Ask, view: FleetView
    ) -> tuple[Destination | None, Destination, Reason] | None:
        decodes = self._order.order(ask, Role.DECODE, view.decode)
        if not decodes:
            return None
        if ask.handoff_from is not None:
            return None, decodes[0], Reason.HANDED_OFF
        if not ask.may_split:
            return None, decodes[0], Reason.LOCAL_ONLY
        pair = _first_pair(self._order.order(ask, Role.PREFILL, view.prefill), decodes, view)
        if pair is None:
            return None, decodes[0], Reason.NO_PREFILL
        if pair[0].key == pair[1].key:
            return None, pair[1], Reason.LOCAL_CHEAPER
        return *pair, Reason.SPLIT

    def _row(
        self,
        ask: Ask,
        prices: Prices,
        prefill: Destination | None,
        decode: Destination,
        *,
        is_chosen: bool,
    ) -> Row:
        return Row(
            prefill=prefill.key[0] if prefill is not None else None,
            prefill_rank=prefill.rank if prefill is not None else 0,
            decode=decode.key[0],
            decode_rank=decode.rank,
            is_chosen=is_chosen,
            terms=self._terms(ask, prices, prefill, decode),
        )

    def _terms(
        self, ask: Ask, prices: Prices, prefill: Destination | None, decode: Destination
    ) -> Terms:
        load = self._load.of(decode.engine, decode.rank)
        answer = prices.decode(decode, load)
        source = prefill.key if prefill is not None else ask.handoff_from
        if source is None:
            return local_terms(prices.prefill(decode, load), answer)
        link_s = prices.handoff_s(source, decode.key, answer.num_moved_tokens)
        if prefill is None:
            return split_terms(None, link_s, answer)
        priced = prices.prefill(prefill, self._load.of(prefill.engine, prefill.rank))
        return split_terms(priced, link_s, answer)


def _first_pair(
    prefills: Iterable[Destination], decodes: list[Destination], view: FleetView
) -> tuple[Destination, Destination] | None:
    for prefill in prefills:
        for decode in decodes:
            if prefill.key == decode.key or view.can_pair(prefill, decode):
                return prefill, decode
    return None
