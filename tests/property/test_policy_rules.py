"""What no policy may do, and what makes a destination more or less attractive."""

import random
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.destinations import ask, destination, pool
from transload_router.core.cost import CostModel
from transload_router.core.index.hits import Hit
from transload_router.core.load import Load
from transload_router.core.policy import POLICIES, CostPolicy, Weights, make_policy
from transload_router.core.policy.types import Ask, Destination, FleetView
from transload_router.core.types import DestinationKey

NAMES = [one.key[0] for one in chain(pool("p", 4), pool("d", 4))]
# Per engine: prompts waiting, tokens each; answers being written; tokens held of the prompt.
STATES = st.fixed_dictionaries(
    {
        name: st.tuples(
            st.integers(0, 3), st.integers(1, 9_000), st.integers(0, 30), st.integers(0, 8_191)
        )
        for name in NAMES
    }
)
State = dict[str, tuple[int, int, int, int]]
SETTINGS = settings(deadline=None, max_examples=60)


def loaded(state: State) -> Load:
    load = Load()
    for name, (num_waiting, tokens, num_decoding, _held) in state.items():
        for _ in range(num_waiting):
            load.reserve(
                destination(name).engine,
                tokens,
                num_prefill_tokens=tokens,
                num_context_tokens=tokens,
                now=10.0,
            )
        for _ in range(num_decoding):
            load.reserve(destination(name).engine, tokens, num_context_tokens=tokens).prefilled()
    return load


def match(state: State) -> dict[DestinationKey, Hit]:
    return {(name, 0): Hit(one[3], one[3]) for name, one in state.items() if one[3]}


def wanted(state: State, may_split: bool = True) -> Ask:
    return ask(8_192, may_split=may_split, match=match(state), session="s")


@pytest.mark.parametrize("name", POLICIES)
@given(
    state=STATES,
    able=st.sets(st.sampled_from(NAMES)),
    forbidden=st.sets(st.tuples(st.integers(0, 3), st.integers(0, 3))),
    may_split=st.booleans(),
    seed=st.integers(0, 99),
)
@SETTINGS
def test_only_who_is_able_and_only_pairs_that_work(
    name: str,
    state: State,
    able: set[str],
    forbidden: set[tuple[int, int]],
    may_split: bool,
    seed: int,
) -> None:
    """Draining, down and avoided engines are not in the view, whatever they hold."""

    def can_pair(prefill: Destination, decode: Destination) -> bool:
        return (int(prefill.key[0][1]), int(decode.key[0][1])) not in forbidden

    view = FleetView(
        [one for one in pool("p", 4) if one.key[0] in able],
        [one for one in pool("d", 4) if one.key[0] in able],
        can_pair,
    )
    policy = make_policy(name, loaded(state), CostModel(), random.Random(seed).random)
    decision = policy.choose(wanted(state, may_split), view, 10.0)
    if not view.decode:
        assert decision is None
        return
    assert decision is not None
    assert decision.decode in view.decode
    if decision.prefill is not None:
        assert may_split
        assert decision.prefill in view.prefill
        assert can_pair(decision.prefill, decision.decode)


def share(state: State) -> dict[tuple[str | None, str], float]:
    """What every candidate that computes by itself costs; prices as they are at this moment.

    A prefill engine is there, so that answers have a price.
    """
    policy = CostPolicy(loaded(state), CostModel(), lambda: 0.0, Weights(load_factor=1e9))
    view = FleetView(pool("p", 1), pool("d", 4))
    rows = policy.explain(wanted(state), view, 10.0)
    return {(None, row.decode): row.terms.total_s for row in rows if row.prefill is None}


def margin(state: State, name: str) -> float:
    """By how much an engine is dearer than the best of the others."""
    costs = share(state)
    own = costs.pop((None, name))
    return own - min(costs.values())


@given(state=STATES, more=st.integers(1, 8_000))
@SETTINGS
def test_more_cache_never_makes_an_engine_less_attractive(state: State, more: int) -> None:
    waiting, tokens, decoding, held = state["d0"]
    richer = {**state, "d0": (waiting, tokens, decoding, min(8_191, held + more))}
    assert margin(richer, "d0") <= margin(state, "d0") + 1e-9


@given(state=STATES, more=st.integers(1, 5))
@SETTINGS
def test_more_answers_never_make_an_engine_more_attractive(state: State, more: int) -> None:
    waiting, tokens, decoding, held = state["d0"]
    busier = {**state, "d0": (waiting, tokens, decoding + more, held)}
    assert share(busier)[None, "d0"] >= share(state)[None, "d0"]


@given(state=STATES, more=st.integers(1, 5))
@SETTINGS
def test_more_queue_never_makes_an_engine_cheaper(state: State, more: int) -> None:
    waiting, tokens, decoding, held = state["d0"]
    busier = {**state, "d0": (waiting + more, tokens, decoding, held)}
    assert share(busier)[None, "d0"] > share(state)[None, "d0"]


@given(state=STATES, seed=st.integers(0, 99))
@SETTINGS
def test_nobody_beyond_the_bound_is_chosen(state: State, seed: int) -> None:
    weights = Weights(cache_weight=1e3)
    policy = CostPolicy(loaded(state), CostModel(), random.Random(seed).random, weights)
    view = FleetView([], pool("d", 4))
    rows = policy.explain(wanted(state), view, 10.0)
    decision = policy.choose(wanted(state), view, 10.0)
    assert decision is not None
    (row,) = [row for row in rows if row.decode == decision.decode.key[0]]
    assert not row.is_overloaded
