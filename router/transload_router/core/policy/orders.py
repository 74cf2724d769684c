"""Orders of preference: who comes first for one leg of a request, by one plain rule each."""

from collections.abc import Sequence
from typing import Protocol

import xxhash

from transload_router.core.load import EngineLoad, Load
from transload_router.core.policy.types import Ask, Chance, Destination
from transload_router.core.types import Role

# A destination with more reserved tokens than this many times the mean, and this request besides,
# comes after all others.
LOAD_FACTOR = 1.25


class Order(Protocol):
    """A rule."""

    def order(self, ask: Ask, role: Role, destinations: Sequence[Destination]) -> list[Destination]:
        """All of them, the best first. Changes nothing."""

    def note_choice(self, role: Role) -> None:
        """The first that could be taken was taken."""


class RandomOrder:
    """By chance."""

    def __init__(self, _load: Load, chance: Chance) -> None:
        self._chance = chance

    def order(
        self, _ask: Ask, _role: Role, destinations: Sequence[Destination]
    ) -> list[Destination]:
        """See `Order.order`."""
        return sorted(destinations, key=lambda _one: self._chance())

    def note_choice(self, role: Role) -> None:
        """Chance has no memory."""


class RoundRobin:
    """In turn, each role by itself; a fleet that changes goes on from where it was."""

    def __init__(self, _load: Load, _chance: Chance) -> None:
        self._turns = dict.fromkeys(Role, 0)

    def order(
        self, _ask: Ask, role: Role, destinations: Sequence[Destination]
    ) -> list[Destination]:
        """See `Order.order`."""
        if not destinations:
            return []
        start = self._turns[role] % len(destinations)
        return [*destinations[start:], *destinations[:start]]

    def note_choice(self, role: Role) -> None:
        """The next one's turn."""
        self._turns[role] += 1


class LeastLoaded:
    """Fewest promised tokens: to compute for prefill, reserved for decode. Ties by chance."""

    def __init__(self, load: Load, chance: Chance) -> None:
        self._load = load
        self._chance = chance

    def order(
        self, _ask: Ask, role: Role, destinations: Sequence[Destination]
    ) -> list[Destination]:
        """See `Order.order`."""

        def key(one: Destination) -> tuple[int, int, float]:
            load = self._load.of(one.engine, one.rank)
            waiting = load.num_prefill_tokens if role is Role.PREFILL else 0
            return waiting, load.num_tokens, self._chance()

        return sorted(destinations, key=key)

    def note_choice(self, role: Role) -> None:
        """Load is kept elsewhere."""


class LongestPrefix:
    """Who holds most of the prompt, within the load bound; the least loaded among equals."""

    def __init__(self, load: Load, chance: Chance) -> None:
        self._load = load
        self._chance = chance

    def order(
        self, ask: Ask, _role: Role, destinations: Sequence[Destination]
    ) -> list[Destination]:
        """See `Order.order`."""
        loads = [self._load.of(one.engine, one.rank) for one in destinations]
        most = _most_tokens(loads, ask)

        def key(at: int) -> tuple[bool, int, int, float]:
            hit = ask.match.get(destinations[at].key)
            held = 0 if hit is None else hit.num_tokens
            tokens = loads[at].num_tokens
            return tokens > most, -held, tokens, self._chance()

        return [destinations[at] for at in sorted(range(len(loads)), key=key)]

    def note_choice(self, role: Role) -> None:
        """Load is kept elsewhere."""


class Session:
    """The same destination for the same session, within the load bound.

    Rendezvous hashing: each session ranks all destinations in an order of its own, so a new
    destination takes only its share of the sessions, and a gone one's go to everybody else.
    Requests without a session go by their prompt's first blocks, and else to the least loaded.
    """

    def __init__(self, load: Load, chance: Chance) -> None:
        self._load = load
        self._least_loaded = LeastLoaded(load, chance)

    def order(self, ask: Ask, role: Role, destinations: Sequence[Destination]) -> list[Destination]:
        """See `Order.order`."""
        if ask.session is None and ask.affinity is None:
            return self._least_loaded.order(ask, role, destinations)
        seed = ask.affinity or 0
        if ask.session is not None:
            seed = xxhash.xxh3_64_intdigest(ask.session.encode())
        loads = [self._load.of(one.engine, one.rank) for one in destinations]
        most = _most_tokens(loads, ask)

        def key(at: int) -> tuple[bool, int]:
            name = f"{destinations[at].key[0]}/{destinations[at].rank}"
            return loads[at].num_tokens > most, -xxhash.xxh3_64_intdigest(name.encode(), seed)

        return [destinations[at] for at in sorted(range(len(loads)), key=key)]

    def note_choice(self, role: Role) -> None:
        """Hashes have no memory."""


def _most_tokens(loads: Sequence[EngineLoad], ask: Ask) -> float:
    mean = sum(load.num_tokens for load in loads) / max(1, len(loads))
    return LOAD_FACTOR * mean + ask.num_prompt_tokens + ask.num_answer_tokens
