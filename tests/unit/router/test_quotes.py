"""Quotes are kept until something changes, and no longer than their engine."""

from support.destinations import engine, pool
from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy.quotes import Quotes
from transload_router.core.policy.types import Destination


def test_the_same_quote_until_something_changes() -> None:
    load, costs = Load(), CostModel()
    quotes, (one, other) = Quotes(load, costs), pool("d", 2)
    first = quotes.of([one, other])
    assert quotes.of([other, one]) == [first[1], first[0]]
    leg = load.reserve(one.engine, 10, num_prefill_tokens=10, num_context_tokens=10, now=1.0)
    second = quotes.of([one, other])
    assert second[0] is not first[0]
    assert second[1] is first[1]
    assert second[0].queue_s(1.0) > 0.0 == first[0].queue_s(1.0)
    leg.release()
    assert quotes.of([one])[0].num_prefilling == 0


def test_a_replaced_engine_is_quoted_anew() -> None:
    load = Load()
    quotes = Quotes(load, CostModel())
    load.reserve(engine("d0"), 10)
    old = Destination(engine("d0"))
    assert quotes.of([old])[0].num_tokens == 10
    assert quotes.of([Destination(engine("d0", generation=1))])[0].num_tokens == 0


def test_a_gone_engine_is_forgotten_with_all_its_ranks() -> None:
    quotes = Quotes(Load(), CostModel())
    ranks = [Destination(engine("d0"), rank, 2) for rank in range(2)]
    quotes.of([*ranks, Destination(engine("d1"))])
    assert len(quotes) == 3
    quotes.forget("d0")
    quotes.forget("d0")
    assert len(quotes) == 1
