"""Policies of one rule each, by name."""

import random
from collections import Counter

import pytest

from support.destinations import ask, destination, holding, view
from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy import POLICIES, make_policy
from transload_router.core.policy.types import Ask, Decision, Destination, FleetView, Policy, Reason

PLAIN = [name for name in POLICIES if name != "cost"]


class World:
    """A policy with its load."""

    def __init__(self, name: str, seed: int = 1) -> None:
        self.load = Load()
        self.policy: Policy = make_policy(name, self.load, CostModel(), random.Random(seed).random)

    def busy(self, name: str, num_tokens: int, num_prefill_tokens: int = 0) -> None:
        self.load.reserve(
            destination(name).engine,
            num_tokens,
            num_prefill_tokens=num_prefill_tokens,
            num_context_tokens=num_tokens,
        )

    def choose(self, wanted: Ask, fleet: FleetView) -> Decision:
        decision = self.policy.choose(wanted, fleet, 0.0)
        assert decision is not None
        return decision

    def names(self, wanted: Ask, fleet: FleetView) -> tuple[str | None, str]:
        decision = self.choose(wanted, fleet)
        return (decision.prefill.key[0] if decision.prefill else None, decision.decode.key[0])


def test_names() -> None:
    assert POLICIES == ("cost", "least-loaded", "round-robin", "prefix", "session", "random")
    with pytest.raises(KeyError):
        make_policy("best", Load(), CostModel(), random.random)


@pytest.mark.parametrize("name", POLICIES)
def test_nobody_can_decode(name: str) -> None:
    world = World(name)
    assert world.policy.choose(ask(), view(2, 0), 0.0) is None
    assert world.policy.explain(ask(), view(2, 0), 0.0) == []


@pytest.mark.parametrize("name", PLAIN)
def test_reasons(name: str) -> None:
    world, fleet = World(name), view(2, 2)
    assert world.choose(ask(), fleet).reason is Reason.SPLIT
    assert world.choose(ask(may_split=False), fleet).reason is Reason.LOCAL_ONLY
    assert world.choose(ask(), view(0, 2)).reason is Reason.NO_PREFILL
    heir = world.choose(ask(handoff_from=("p0", 0)), fleet)
    assert (heir.prefill, heir.reason) == (None, Reason.HANDED_OFF)
    alone = FleetView([destination("d0")], [destination("d0")])
    assert world.choose(ask(), alone).reason is Reason.LOCAL_CHEAPER


@pytest.mark.parametrize("name", PLAIN)
def test_pairs_that_do_not_work_are_not_chosen(name: str) -> None:
    def can_pair(prefill: Destination, decode: Destination) -> bool:
        return (prefill.key[0], decode.key[0]) == ("p1", "d2")

    world = World(name)
    for _ in range(6):
        assert world.names(ask(session="s"), view(3, 3, can_pair)) == ("p1", "d2")
    never = view(2, 2, lambda _p, _d: False)
    assert world.choose(ask(), never).reason is Reason.NO_PREFILL


def test_round_robin_takes_turns_per_role() -> None:
    world = World("round-robin")
    assert [world.names(ask(), view(2, 3)) for _ in range(4)] == [
        ("p0", "d0"),
        ("p1", "d1"),
        ("p0", "d2"),
        ("p1", "d0"),
    ]
    world.policy.explain(ask(), view(2, 3), 0.0)
    assert world.names(ask(may_split=False), view(2, 3)) == (None, "d1")
    assert world.names(ask(), view(2, 3)) == ("p0", "d2")


def test_least_loaded_by_work_of_the_role() -> None:
    world = World("least-loaded")
    world.busy("p0", 10_000, num_prefill_tokens=10)
    world.busy("p1", 500, num_prefill_tokens=500)
    world.busy("d0", 3)
    world.busy("d1", 2)
    world.busy("d2", 4)
    assert world.names(ask(), view(2, 3)) == ("p0", "d1")


@pytest.mark.parametrize("name", ["least-loaded", "random", "prefix", "cost"])
def test_ties_are_spread(name: str) -> None:
    world, fleet = World(name), view(0, 4)
    picks = Counter(world.names(ask(), fleet)[1] for _ in range(400))
    assert sorted(picks) == ["d0", "d1", "d2", "d3"]
    assert min(picks.values()) > 60


def test_the_longest_prefix_within_the_bound() -> None:
    world = World("prefix")
    held = holding(p0=512, p1=2_048, d0=512)
    assert world.names(ask(match=held), view(3, 2)) == ("p1", "d0")
    world.busy("p1", 50_000)
    assert world.names(ask(match=held), view(3, 2)) == ("p0", "d0")


def test_sessions_stay() -> None:
    world, fleet = World("session"), view(4, 4)
    for number in range(20):
        places = {world.names(ask(session=f"s{number}"), fleet) for _ in range(5)}
        assert len(places) == 1
    affine = {world.names(ask(affinity=7), fleet) for _ in range(5)}
    assert len(affine) == 1


def test_a_session_leaves_an_overloaded_engine_and_nobody_else_does() -> None:
    world, fleet = World("session"), view(0, 4)
    homes = {name: world.names(ask(session=name), fleet)[1] for name in map(str, range(40))}
    world.busy(homes["0"], 10**6)
    for name, home in homes.items():
        now = world.names(ask(session=name), fleet)[1]
        assert (now == home) == (home != homes["0"])


def test_without_a_session_the_least_loaded() -> None:
    world = World("session")
    world.busy("d0", 5)
    assert world.names(ask(), view(0, 2)) == (None, "d1")


def test_a_fifth_engine_takes_a_fifth_of_the_sessions() -> None:
    """B135."""
    world = World("session")
    names = [f"session-{number}" for number in range(1_000)]
    before = [world.names(ask(session=name), view(0, 4))[1] for name in names]
    after = [world.names(ask(session=name), view(0, 5))[1] for name in names]
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert set(moved) == {"d4"}
    assert 150 < len(moved) < 250
    assert min(Counter(before).values()) > 200


@pytest.mark.parametrize("name", PLAIN)
def test_explanations_have_every_destination_once_and_mark_the_choice(name: str) -> None:
    world, fleet = World(name), view(3, 3)
    wanted = ask(match=holding(p1=512, d2=1_024), session="s")
    rows = world.policy.explain(wanted, fleet, 0.0)
    assert sum(row.is_chosen for row in rows) == 1
    assert {row.prefill for row in rows} == {"p0", "p1", "p2"}
    assert {row.decode for row in rows} == {"d0", "d1", "d2"}
    chosen = next(row for row in rows if row.is_chosen)
    if name in ("round-robin", "prefix", "session"):
        assert world.names(wanted, fleet) == (chosen.prefill, chosen.decode)
    local = world.policy.explain(ask(may_split=False), fleet, 0.0)
    assert [row.prefill for row in local] == [None] * 3


@pytest.mark.parametrize("name", PLAIN)
def test_terms_say_what_is_expected(name: str) -> None:
    world, fleet = World(name), view(1, 1)
    split = world.choose(ask(1_000, match=holding(p0=600, d0=500)), fleet).predicted
    assert (split.num_cached_tokens, split.num_uncached_tokens) == (600, 400)
    assert split.num_moved_tokens == 500
    assert split.first_token_s == pytest.approx(
        split.queue_s + split.prefill_s + split.handoff_s + split.admission_s
    )
    heir = world.choose(ask(1_000, handoff_from=("p9", 0)), fleet).predicted
    assert (heir.prefill_s, heir.num_moved_tokens) == (0.0, 1_000)
    local = world.choose(ask(1_000, may_split=False), fleet).predicted
    assert (local.handoff_s, local.num_uncached_tokens) == (0.0, 1_000)
