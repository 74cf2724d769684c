"""K12: overlap against load, per request, with the index as it is used."""

import random
from collections import Counter

import pytest

from support.destinations import view
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.policy.types import Ask, FleetView
from transload_router.core.prompt import Prompt, pack_tokens
from transload_router.core.routing import Choice, Routing

PREDICTED_S = 5.0


class World:
    """A router's core: index, routing, a fleet of engines that do both legs."""

    def __init__(self, num_engines: int, seed: int = 7) -> None:
        self.chance = random.Random(seed)
        self.index = Index()
        self.routing = Routing(random.Random(seed).random)
        self.fleet: FleetView = view(0, num_engines)
        self.now = 0.0
        for one in self.fleet.decode:
            self.index.add_owner(one.key, "m", one.engine.generation)

    def prompt(self, num_shared: int, num_own: int) -> Prompt:
        """The first `num_shared` tokens are everybody's, the others nobody else's."""
        own = [self.chance.randrange(1, 10**6) for _ in range(num_own)]
        return Prompt(Identity("m"), pack_tokens([*range(num_shared), *own]))

    def send(self, prompt: Prompt) -> Choice:
        match = self.index.match(prompt)
        asked = Ask(num_prompt_tokens=prompt.num_tokens, num_answer_tokens=100, match=match)
        choice = self.routing.choose(asked, self.fleet, self.now)
        assert choice is not None
        self.index.predict(choice.decision.decode.key, prompt, self.now, PREDICTED_S)
        return choice

    def serve(self, choice: Choice, prefill_s: float = 0.2, step_s: float = 0.01) -> None:
        """From here to its end, alone."""
        self.now += prefill_s
        self.routing.observe_first_token(choice, self.now)
        self.now += 99 * step_s
        self.routing.observe_end(choice, self.now, 100)
        choice.release(self.now)

    def shares(self, choices: list[Choice]) -> Counter[str]:
        return Counter(one.decision.decode.key[0] for one in choices)


@pytest.mark.parametrize("num_shared", [2_048, 16_384])
def test_a_hot_prefix_gets_a_second_holder(num_shared: int) -> None:
    """B123: 4 engines, 100 requests with the same long prefix."""
    world = World(4)
    choices = [world.send(world.prompt(num_shared, 64)) for _ in range(100)]
    shares = world.shares(choices)
    assert len(shares) >= 2
    waits = [world.routing.queue_s(one, world.now) for one in world.fleet.decode]
    whole_s = world.routing.costs.of(("d0", 0)).prefill_s(
        num_shared + 64,
        (num_shared + 64) ** 2 / 2,
        world.routing.load.of(world.fleet.decode[0].engine),
    )
    # The bound, and the one prompt that may be the last below it.
    assert max(waits) <= 2.0 * sum(waits) / 4 + 1.0 + 2 * whole_s
    tokens = [world.routing.load.of(one.engine).num_tokens for one in world.fleet.decode]
    assert max(tokens) <= 2.5 * sum(tokens) / 4


def test_among_those_with_room_a_holder_is_preferred() -> None:
    """B125: one engine just over the limit; three hold the prefix."""
    world = World(4)
    shared = world.prompt(8_192, 0)
    for one in world.fleet.decode[:3]:
        world.index.predict(one.key, shared, world.now, PREDICTED_S)
    for _ in range(30):
        world.routing.load.reserve(
            world.fleet.decode[0].engine,
            8_000,
            num_prefill_tokens=8_000,
            num_context_tokens=8_000,
            now=world.now,
        )
    shares = world.shares([world.send(world.prompt(8_192, 64)) for _ in range(6)])
    assert set(shares) <= {"d1", "d2"}


def test_the_second_of_two_equal_prompts_finds_the_first() -> None:
    """B127: nothing is known, and no threshold keeps it so."""
    world = World(4)
    for _ in range(10):
        prompt = world.prompt(0, 2_048)
        first = world.send(prompt)
        world.serve(first)
        second = world.send(prompt)
        world.serve(second)
        assert first.decision.decode.key == second.decision.decode.key


def test_a_burst_of_siblings_stays_together_up_to_the_bound() -> None:
    """B128: 20 at once, cold: what is promised counts before any event comes."""
    world = World(8)
    shares = world.shares([world.send(world.prompt(16_384, 64)) for _ in range(20)])
    assert len(shares) <= 3


def test_light_load_is_spread() -> None:
    """B129: 100 sequential distinct prompts, 3 engines."""
    world = World(3)
    choices = []
    for _ in range(100):
        choice = world.send(world.prompt(0, 1_000))
        world.serve(choice)
        choices.append(choice)
    shares = world.shares(choices)
    assert sorted(shares) == ["d0", "d1", "d2"]
    assert min(shares.values()) >= 15


def test_what_is_under_way_counts_at_once() -> None:
    """B133: 8 at once, 2 workers with load 0 and 1; nobody polls anything."""
    world = World(2)
    busy = world.send(world.prompt(0, 1_000))
    shares = world.shares([busy, *(world.send(world.prompt(0, 1_000)) for _ in range(7))])
    assert max(shares.values()) <= 5


def test_a_slow_worker_gets_less_and_is_asked_again() -> None:
    """One of four takes four times as long; after 300 s it is as fast as all others."""
    world = World(4)
    names = [one.key[0] for one in world.fleet.decode]
    free_s = dict.fromkeys(names, 0.0)
    under_way: list[tuple[float, Choice]] = []
    chosen: list[str] = []
    while world.now < 900.0:
        world.now += 0.12
        for ended in [one for one in under_way if one[0] <= world.now]:
            under_way.remove(ended)
            world.routing.observe_first_token(ended[1], ended[0])
            ended[1].release(ended[0])
        choice = world.routing.choose(Ask(num_prompt_tokens=2_000), world.fleet, world.now)
        assert choice is not None
        name = choice.decision.decode.key[0]
        is_slow = name == "d0" and world.now < 300.0
        free_s[name] = max(world.now, free_s[name]) + (1.2 if is_slow else 0.3)
        assert free_s[name] < world.now + 6.0
        under_way.append((free_s[name], choice))
        chosen.append(name)
    noticed = Counter(chosen[300:2_500])
    assert noticed["d0"] < 0.4 * min(noticed[name] for name in names[1:])
    healed = Counter(chosen[-1_500:])
    assert healed["d0"] > 0.5 * min(healed[name] for name in names[1:])


def test_large_fleets_cost_what_they_have_engines_not_pairs() -> None:
    """B130: pairs looked at, counted through the verdict that each of them needs."""
    asked = 0

    def can_pair(_prefill: object, _decode: object) -> bool:
        nonlocal asked
        asked += 1
        return True

    routing = Routing(random.Random(3).random)
    fleet = view(250, 250, can_pair)
    chance = random.Random(4)
    for number in range(200):
        for prefill in chance.sample(range(250), 3):
            for tokens in (1_000, 9_000):
                routing.costs.links.observe(
                    (f"p{prefill}", 0), (f"d{number}", 0), tokens, chance.uniform(0.01, 0.1)
                )
    most = 0
    for number in range(60):
        asked = 0
        choice = routing.choose(Ask(num_prompt_tokens=8_000), fleet, number / 100)
        assert choice is not None
        most = max(most, asked)
    assert most <= 2 * 500
