"""The policy by cost: what pulls a request where, and that its figures add up."""

import random
from collections.abc import Callable

import pytest

from support.destinations import ask, destination, holding, pool, view
from transload_router.core.cost import CostModel
from transload_router.core.load import Load
from transload_router.core.policy import CostPolicy, Weights
from transload_router.core.policy.types import Ask, Decision, Destination, FleetView, Reason, Row

NOW = 50.0


class World:
    """A policy with its load and its times; the same chance for everybody unless told."""

    def __init__(self, chance: Callable[[], float] = lambda: 0.0, **weights: float) -> None:
        self.load = Load()
        self.costs = CostModel()
        self.policy = CostPolicy(self.load, self.costs, chance, Weights(**weights))

    def prefilling(self, name: str, num_tokens: int, count: int = 1, now: float = NOW) -> None:
        for _ in range(count):
            self.load.reserve(
                destination(name).engine,
                num_tokens,
                num_prefill_tokens=num_tokens,
                num_context_tokens=num_tokens,
                now=now,
            )

    def decoding(self, name: str, num_tokens: int, count: int = 1) -> None:
        for _ in range(count):
            self.load.reserve(
                destination(name).engine, num_tokens, num_context_tokens=num_tokens
            ).prefilled(NOW)

    def link(self, prefill: str, decode: str, factor: float) -> None:
        for tokens in (1_000, 10_000) * 20:
            self.costs.links.observe(
                (prefill, 0), (decode, 0), tokens, factor * (0.005 + tokens * 1e-5)
            )

    def choose(self, wanted: Ask, fleet: FleetView) -> Decision:
        decision = self.policy.choose(wanted, fleet, NOW)
        assert decision is not None
        return decision

    def names(self, wanted: Ask, fleet: FleetView) -> tuple[str | None, str]:
        decision = self.choose(wanted, fleet)
        return (decision.prefill.key[0] if decision.prefill else None, decision.decode.key[0])

    def explain(self, wanted: Ask, fleet: FleetView) -> list[Row]:
        return self.policy.explain(wanted, fleet, NOW)


def test_short_prompts_stay_long_ones_are_split_beside_running_answers() -> None:
    world, fleet = World(), view(1, 1)
    world.decoding("d0", 2_000, 3)
    assert world.names(ask(50), fleet) == (None, "d0")
    assert world.names(ask(20_000), fleet) == ("p0", "d0")


def test_a_prompt_that_decode_holds_stays() -> None:
    world, fleet = World(), view(1, 1)
    world.decoding("d0", 2_000, 20)
    held = holding(d0=19_968)
    decision = world.choose(ask(20_000, match=held), fleet)
    assert (decision.prefill, decision.reason) == (None, Reason.LOCAL_CHEAPER)


def test_slow_links_keep_it_local() -> None:
    world, fleet = World(), view(1, 1)
    world.decoding("d0", 2_000, 3)
    world.link("p0", "d0", 100.0)
    assert world.names(ask(20_000), fleet) == (None, "d0")


def test_running_answers_are_spared_where_prefill_engines_are() -> None:
    """The queue there is longer than computing it here would take; only answers speak against."""
    fleet = view(1, 1)
    for weight, source in ((0.0, None), (1.0, "p0")):
        world = World(breach_weight=weight)
        world.decoding("d0", 2_000, 8)
        world.prefilling("p0", 5_000)
        assert world.names(ask(8_000), fleet) == (source, "d0")


def test_a_breach_weighs_less_the_longer_the_shortest_queue_of_prefill() -> None:
    def breach_s(*queued: int) -> float:
        world, fleet = World(), view(len(queued), 1)
        world.decoding("d0", 2_000, 8)
        for index, num_tokens in enumerate(queued):
            world.prefilling(f"p{index}", num_tokens)
        (row,) = [row for row in world.explain(ask(8_000), fleet) if row.prefill is None]
        return row.terms.breach_cost_s

    assert breach_s(1, 50_000) > breach_s(4_000, 50_000) > 0.0
    assert breach_s(30_000, 50_000) == 0.0


def test_the_breach_is_what_a_step_takes_beyond_the_target() -> None:
    fleet = view(1, 1)

    def breach_s(num_tokens: int, count: int = 8, target_s: float = 0.05) -> float:
        world = World(inter_token_target_s=target_s, breach_weight=1.0)
        world.decoding("d0", 2_000, count)
        (row,) = [row for row in world.explain(ask(num_tokens), fleet) if row.prefill is None]
        assert row.terms.prefill_s > 0.0
        return row.terms.breach_cost_s

    assert breach_s(100) == 0.0  # fits into the step
    assert breach_s(8_000, count=0) == 0.0  # holds nobody up
    # 10 ms a step, 0.1 ms a token, 3 ns a token and token of context, beside 8 answers.
    assert breach_s(2_000) == pytest.approx(8 * (0.01 + 0.2 + 0.006 + 8 * 130e-6 - 0.05))
    assert breach_s(2_000, target_s=0.3) == 0.0
    # Steps that are beyond the target anyway: what they are made longer by.
    assert breach_s(2_000, target_s=0.0) == pytest.approx(8 * (0.2 + 0.006))


def test_what_waits_already_leaves_no_room_in_a_step() -> None:
    world, fleet = World(), view(1, 1)
    world.decoding("d0", 2_000, 8)
    (before,) = [row for row in world.explain(ask(300), fleet) if row.prefill is None]
    world.prefilling("d0", 300)
    (after,) = [row for row in world.explain(ask(300), fleet) if row.prefill is None]
    assert before.terms.breach_cost_s == 0.0
    assert after.terms.breach_cost_s > 0.0


def test_no_breach_where_nobody_could_spare_the_answers() -> None:
    """Mixed fleets, and requests that cannot be split."""
    world = World()
    world.decoding("d0", 2_000, 8)
    (mixed,) = world.explain(ask(8_000), view(0, 1))
    (whole,) = world.explain(ask(8_000, may_split=False), view(1, 1))
    assert mixed.terms.breach_cost_s == whole.terms.breach_cost_s == 0.0


def test_mixed_engines_are_chosen_without_a_breach() -> None:
    """However much it weighs, and although only one of them writes answers."""
    world, fleet = World(breach_weight=1e3), view(0, 2)
    world.decoding("d0", 2_000)
    world.prefilling("d1", 8_000)
    assert world.names(ask(8_000), fleet) == (None, "d0")


def test_the_faster_link_of_two() -> None:
    world, fleet = World(), view(2, 1)
    world.decoding("d0", 2_000, 20)
    world.link("p0", "d0", 3.0)
    world.link("p1", "d0", 0.5)
    assert world.names(ask(20_000), fleet) == ("p1", "d0")


def test_a_holder_is_preferred_until_waiting_there_takes_longer() -> None:
    world, fleet = World(), view(0, 3)
    held = holding(d1=8_192)
    assert world.names(ask(9_000, match=held), fleet) == (None, "d1")
    world.prefilling("d1", 2_000)
    assert world.names(ask(9_000, match=held), fleet) == (None, "d1")
    world.prefilling("d1", 200_000)
    assert world.names(ask(9_000, match=held), fleet) != (None, "d1")


def test_the_shorter_queue_and_the_emptier_decode() -> None:
    world, fleet = World(), view(2, 2)
    world.prefilling("p0", 4_000)
    world.decoding("d1", 1_000, 40)
    world.decoding("d0", 1_000, 30)
    assert world.names(ask(20_000), fleet) == ("p1", "d0")


def test_a_stuck_engine_is_avoided_before_it_answers() -> None:
    world, fleet = World(), view(0, 2)
    world.prefilling("d0", 100, now=NOW - 20.0)
    world.prefilling("d1", 8_000)
    assert world.names(ask(4_000), fleet) == (None, "d1")


def test_reasons_and_heirs() -> None:
    world, fleet = World(), view(2, 2)
    assert world.choose(ask(may_split=False), fleet).reason is Reason.LOCAL_ONLY
    assert world.choose(ask(), view(0, 2)).reason is Reason.NO_PREFILL
    world.decoding("d0", 1_000, 50)
    heir = world.choose(ask(handoff_from=("p0", 0)), fleet)
    assert (heir.prefill, heir.decode.key[0], heir.reason) == (None, "d1", Reason.HANDED_OFF)
    assert heir.predicted.prefill_s == 0.0
    assert heir.predicted.handoff_s > 0.0


def test_pairs_that_do_not_work_are_not_chosen() -> None:
    def can_pair(prefill: Destination, _decode: Destination) -> bool:
        return prefill.key[0] == "p1"

    world = World()
    for name in ("d0", "d1"):
        world.decoding(name, 2_000, 20)
    world.prefilling("p1", 1_000)
    assert world.names(ask(20_000), view(2, 2, can_pair))[0] == "p1"
    assert world.names(ask(20_000), view(2, 2, lambda _p, _d: False))[0] is None


def test_an_engine_that_takes_both_legs_is_no_pair_with_itself() -> None:
    world = World()
    both = FleetView(pool("d", 2), pool("d", 2))
    world.decoding("d0", 2_000, 30)
    decision = world.choose(ask(20_000), both)
    assert decision.prefill is None or decision.prefill.key != decision.decode.key


def test_ranks_are_chosen_by_what_they_hold() -> None:
    ranks = [destination("d0", rank, 4) for rank in range(4)]
    world = World()
    held = {("d0", 2): holding(d0=4_000)["d0", 0]}
    assert world.choose(ask(4_096, match=held), FleetView([], ranks)).decode.rank == 2


@pytest.mark.parametrize("seed", range(20))
def test_the_scan_and_the_terms_say_the_same(seed: int) -> None:
    """What was compared is what is explained: choices of random fleets cost the least."""
    chance = random.Random(seed)
    world = World(tie_share=0.0)
    fleet = view(chance.randrange(5), 1 + chance.randrange(5))
    for one in [*fleet.prefill, *fleet.decode]:
        world.prefilling(one.key[0], chance.randrange(1, 5_000), chance.randrange(4), NOW - 0.1)
        if one in fleet.decode:
            world.decoding(one.key[0], chance.randrange(1, 5_000), chance.randrange(20))
    held = holding(
        **{one.key[0]: chance.randrange(9_000) for one in fleet.decode if chance.random() < 0.5}
    )
    wanted = ask(chance.randrange(100, 9_000), match=held)
    decision, rows = world.choose(wanted, fleet), world.explain(wanted, fleet)
    (best,) = [row for row in rows if row.is_chosen]
    assert decision.predicted.total_s == pytest.approx(best.terms.total_s)
    for row in rows:
        terms = row.terms
        assert terms.total_s >= best.terms.total_s or row.is_overloaded
        assert terms.first_token_s == pytest.approx(
            terms.queue_s + terms.prefill_s + terms.handoff_s + terms.admission_s
        )
        assert terms.total_s == pytest.approx(
            terms.first_token_s
            + terms.delay_cost_s
            + terms.cache_cost_s
            + terms.stall_cost_s
            + terms.breach_cost_s
            + terms.answer_cost_s
        )


def test_explanations_have_every_destination() -> None:
    world, fleet = World(), view(3, 4)
    rows = world.explain(ask(), fleet)
    assert {row.prefill for row in rows} == {None, "p0", "p1", "p2"}
    assert {row.decode for row in rows if row.prefill} == {f"d{index}" for index in range(4)}
    assert [row.decode for row in rows if row.prefill is None] == ["d0", "d1", "d2", "d3"]
    heirs = world.explain(ask(handoff_from=("p7", 0)), fleet)
    assert [(row.prefill, row.decode) for row in heirs] == [("p7", f"d{i}") for i in range(4)]
    assert sum(row.is_chosen for row in heirs) == 1


def test_explaining_an_overloaded_engine() -> None:
    world, fleet = World(), view(0, 4)
    world.prefilling("d0", 500_000)
    rows = {row.decode: row for row in world.explain(ask(match=holding(d0=4_095)), fleet)}
    assert rows["d0"].is_overloaded
    assert not rows["d1"].is_overloaded


def test_nobody_is_beyond_the_bound_however_good_its_cache() -> None:
    """Weights that would never leave the holder: only the bound does."""
    world = World(cache_weight=1e6)
    fleet = view(0, 4)
    held = holding(d0=4_095)
    assert world.names(ask(match=held), fleet) == (None, "d0")
    world.prefilling("d0", 4_000, 2)
    assert world.names(ask(match=held), fleet) == (None, "d0")
    world.prefilling("d0", 30_000, 2)
    assert world.names(ask(match=held), fleet) != (None, "d0")


def test_a_decode_engine_with_long_steps_is_beyond_the_bound() -> None:
    world = World(cache_weight=1e6)
    fleet = view(0, 4)
    held = holding(d0=4_095)
    world.decoding("d0", 4_000, 20)
    assert world.names(ask(match=held), fleet) == (None, "d0")
    world.decoding("d0", 4_000, 300)
    assert world.names(ask(match=held), fleet) != (None, "d0")


def test_where_all_are_overloaded_all_may_be_chosen() -> None:
    world, fleet = World(load_factor=0.0, load_slack_s=0.0), view(1, 2)
    for name in ("d0", "d1", "p0"):
        world.prefilling(name, 500_000)
        world.decoding(name, 1_000, 5)
    assert world.policy.choose(ask(100), fleet, NOW) is not None


def test_decisions_change_no_load() -> None:
    world, fleet = World(), view(2, 2)
    world.choose(ask(), fleet)
    world.explain(ask(), fleet)
    assert world.load.num_requests() == 0


def test_what_is_quoted_follows_load_costs_and_generations() -> None:
    world = World()
    first, second = destination("d0"), destination("d1")
    fleet = FleetView([], [first, second])
    assert world.names(ask(), fleet) == (None, "d0")
    world.prefilling("d0", 9_000)
    assert world.names(ask(), fleet) == (None, "d1")
    world.load.forget("d0")
    assert world.names(ask(), fleet) == (None, "d0")
    world.prefilling("d0", 9_000)
    assert world.names(ask(), fleet) == (None, "d1")
    replaced = destination("d0")
    replaced.engine = type(replaced.engine)("d0", replaced.engine.role, replaced.engine.address, 1)
    assert world.names(ask(), FleetView([], [replaced, second])) == (None, "d0")
    for _ in range(60):
        for key, seconds in ((("d0", 0), 9.0), (("d1", 0), 0.1)):
            world.costs.of(key).learn_prefill((1.0, 4e3, 8e6), seconds, (0.01, 1e-4, 3e-9), NOW)
    assert world.names(ask(), FleetView([], [replaced, second])) == (None, "d1")
