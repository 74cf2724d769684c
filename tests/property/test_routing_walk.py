"""Random walks of requests that end well or badly, or twice, on engines that flap."""

import random

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from support.destinations import ask, engine
from transload_router.core.load import EngineLoad
from transload_router.core.policy import POLICIES
from transload_router.core.policy.types import Destination, FleetView
from transload_router.core.routing import Choice, Routing
from transload_router.core.types import Role

PREFILLS, DECODES = ("p0", "p1"), ("d0", "d1")


class RoutingWalk(RuleBasedStateMachine):
    """The sum of all loads is what live requests hold on engines that are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.chance = random.Random(1)
        self.routing = Routing(self.chance.random, self.chance.choice(POLICIES))
        self.generations = dict.fromkeys((*PREFILLS, *DECODES), 0)
        self.live: list[Choice] = []
        self.now = 0.0

    def _view(self) -> FleetView:
        def pool(names: tuple[str, ...], role: Role) -> list[Destination]:
            return [Destination(engine(name, role, self.generations[name])) for name in names]

        return FleetView(pool(PREFILLS, Role.PREFILL), pool(DECODES, Role.DECODE))

    def _any(self, number: int) -> Choice:
        return self.live[number % len(self.live)]

    @rule(tokens=st.integers(1, 20_000), answer=st.integers(0, 500), may_split=st.booleans())
    def begin(self, tokens: int, answer: int, may_split: bool) -> None:
        self.now += 0.1
        wanted = ask(tokens, answer, may_split=may_split, session=str(tokens % 5))
        choice = self.routing.choose(wanted, self._view(), self.now)
        assert choice is not None
        self.live.append(choice)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 99))
    def prefilled(self, number: int) -> None:
        self.now += 0.1
        choice = self._any(number)
        self.routing.observe_prefill(choice, self.now)
        choice.release_prefill(self.now)
        self.routing.observe_sent(choice, self.now)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 99))
    def first_token(self, number: int) -> None:
        self.now += 0.1
        self.routing.observe_first_token(self._any(number), self.now)

    @precondition(lambda self: self.live)
    @rule(number=st.integers(0, 99), tokens=st.integers(0, 99), is_whole=st.booleans())
    def end(self, number: int, tokens: int, is_whole: bool) -> None:
        """Whole, failed or cancelled, in whatever phase; the releases of a retry come twice."""
        self.now += 0.1
        choice = self.live.pop(number % len(self.live))
        if is_whole:
            self.routing.observe_end(choice, self.now, tokens)
        choice.release(self.now)
        choice.release(self.now)

    @rule(name=st.sampled_from([*PREFILLS, *DECODES]))
    def replace(self, name: str) -> None:
        self.generations[name] += 1

    @rule(name=st.sampled_from([*PREFILLS, *DECODES]))
    def forget(self, name: str) -> None:
        self.routing.forget(name)
        self.generations[name] += 1

    def _counted(self, name: str) -> list[tuple[int, bool]]:
        """Legs on an engine's present generation: reserved tokens, whether they prefill."""
        found = []
        for choice in self.live:
            decision = choice.decision
            for leg, place in (
                (choice.prefill, decision.prefill),
                (choice.decode, decision.decode),
            ):
                if leg is None or place is None or leg.is_released or place.key[0] != name:
                    continue
                if place.engine.generation == self.generations[name]:
                    found.append((leg.num_tokens, leg.is_prefilling))
        return found

    @invariant()
    def loads_are_what_live_requests_hold(self) -> None:
        for name, generation in self.generations.items():
            role = Role.PREFILL if name in PREFILLS else Role.DECODE
            load = self.routing.load.of(engine(name, role, generation))
            counted = self._counted(name)
            assert load.num_requests == len(counted)
            assert load.num_tokens == sum(tokens for tokens, _ in counted)
            assert load.num_prefilling == sum(is_prefilling for _, is_prefilling in counted)
            assert load.num_prefilling == len(load.queue)
            assert _least(load) >= 0

    def teardown(self) -> None:
        for choice in self.live:
            choice.release(self.now)
        self.live.clear()
        self.loads_are_what_live_requests_hold()
        for _key, load in self.routing.load.items():
            assert (load.num_prefill_tokens, load.prefill_area) == (0, 0)
            assert (load.num_decoding, load.num_context_tokens) == (0, 0)


def _least(load: EngineLoad) -> int:
    return min(
        load.num_requests,
        load.num_tokens,
        load.num_prefilling,
        load.num_prefill_tokens,
        load.prefill_area,
        load.num_decoding,
        load.num_context_tokens,
    )


RoutingWalk.TestCase.settings = settings(max_examples=40, stateful_step_count=40, deadline=None)
TestRouting = RoutingWalk.TestCase
