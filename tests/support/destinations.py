"""Small fleets of destinations for policies, and what they hold."""

from collections.abc import Callable, Mapping

from transload_router.core.index.hits import Hit
from transload_router.core.policy.types import Ask, Destination, FleetView
from transload_router.core.types import Address, DestinationKey, Engine, Role

PREFILL, DECODE = Role.PREFILL, Role.DECODE


def engine(name: str = "d0", role: Role = DECODE, generation: int = 0) -> Engine:
    return Engine(name, role, Address("h", 1), generation)


def destination(name: str, rank: int = 0, num_ranks: int = 1) -> Destination:
    """Named by its pool: "p0", "d3"."""
    role = PREFILL if name.startswith("p") else DECODE
    return Destination(engine(name, role), rank, num_ranks)


def pool(letter: str, count: int) -> list[Destination]:
    return [destination(f"{letter}{index}") for index in range(count)]


def view(
    num_prefill: int,
    num_decode: int,
    can_pair: Callable[[Destination, Destination], bool] = lambda _p, _d: True,
) -> FleetView:
    return FleetView(pool("p", num_prefill), pool("d", num_decode), can_pair)


def holding(**tokens: int) -> Mapping[DestinationKey, Hit]:
    """What engines hold of a prompt, rank 0."""
    return {(name, 0): Hit(count, count) for name, count in tokens.items()}


def ask(num_prompt_tokens: int = 4096, num_answer_tokens: int = 100, **others: object) -> Ask:
    return Ask(
        num_prompt_tokens=num_prompt_tokens,
        num_answer_tokens=num_answer_tokens,
        **others,  # type: ignore[arg-type]
    )
