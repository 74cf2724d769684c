"""What policies are asked, what they choose among, and what they answer."""

import enum
from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

import msgspec

from transload_router.core.index.hits import Hit
from transload_router.core.types import DestinationKey, Engine

# Gives a float in [0, 1); chance is passed in, so that tests can hold it still.
Chance = Callable[[], float]


# What destinations hold of a prompt; those that hold nothing may be left out.
Match = Mapping[DestinationKey, Hit]


class Destination:
    """One data-parallel rank of an engine, able to take a leg.

    Attributes:
        engine: The engine.
        rank: Its data-parallel rank; 0 for engines without ranks.
        num_ranks: How many ranks the engine has.
        key: (engine id, rank).
    """

    __slots__ = ("engine", "key", "num_ranks", "rank")

    def __init__(self, engine: Engine, rank: int = 0, num_ranks: int = 1) -> None:
        self.engine = engine
        self.rank = rank
        self.num_ranks = num_ranks
        self.key: DestinationKey = (engine.id, rank)

    def __repr__(self) -> str:
        return f"{self.key[0]}/{self.rank}" if self.num_ranks > 1 else self.key[0]


def _any_pair(_prefill: Destination, _decode: Destination) -> bool:
    return True


class FleetView(msgspec.Struct, frozen=True):
    """Who may take a leg of one request: able, up, neither draining nor avoided.

    Attributes:
        prefill: Destinations that may compute the prompt for another one.
        decode: Destinations that may write the answer.
        can_pair: Whether a handoff from the first to the second is not known to fail.
    """

    prefill: Sequence[Destination]
    decode: Sequence[Destination]
    can_pair: Callable[[Destination, Destination], bool] = _any_pair


class Ask(msgspec.Struct, frozen=True, kw_only=True):
    """What a policy may know of a request.

    Attributes:
        num_prompt_tokens: Exact where `is_exact`, else estimated.
        num_answer_tokens: The client's limit, or an estimate; 0 if unknown.
        may_split: Whether two engines can share the request.
        session: What keeps requests of one conversation together, if the client said so.
        affinity: A key of the prompt's first blocks that few other prompts share, or None.
            Sends a prompt that nobody holds to the same destination as its siblings.
        match: What destinations hold; those without a hit may be left out.
        is_exact: Whether the prompt is known as token ids.
        handoff_from: Who has computed the prompt already, where only decode is wanted.
    """

    model: str | None = None
    num_prompt_tokens: int
    num_answer_tokens: int = 0
    may_split: bool = True
    session: str | None = None
    affinity: int | None = None
    match: Match = msgspec.field(default_factory=dict)
    is_exact: bool = True
    handoff_from: DestinationKey | None = None


class Reason(enum.StrEnum):
    """Why a request goes where it goes."""

    SPLIT = "split"
    LOCAL_CHEAPER = "local_cheaper"
    LOCAL_ONLY = "local_only"
    NO_PREFILL = "no_prefill"
    HANDED_OFF = "handed_off"


class Terms(msgspec.Struct, frozen=True, kw_only=True):
    """A choice in figures, seconds unless the name says tokens.

    Attributes:
        num_cached_tokens: What the destination that prefills need not compute.
        num_uncached_tokens: What it must.
        num_moved_tokens: What the handoff has to carry.
        queue_s: Until the prefilling destination begins.
        prefill_s: Computing the rest of the prompt.
        handoff_s: From prefill's answer to decode's readiness.
        admission_s: Until decode takes it in, first step included.
        first_token_s: All of these.
        delay_cost_s: What others wait longer for this prefill.
        cache_cost_s: What duplicating blocks will cost later prompts.
        stall_cost_s: What running answers wait longer for it.
        breach_cost_s: What it holds them up beyond the inter-token target.
        answer_cost_s: What writing the answer costs, its own and others' steps.
        total_s: What is compared.
    """

    num_cached_tokens: int = 0
    num_uncached_tokens: int = 0
    num_moved_tokens: int = 0
    queue_s: float = 0.0
    prefill_s: float = 0.0
    handoff_s: float = 0.0
    admission_s: float = 0.0
    first_token_s: float = 0.0
    delay_cost_s: float = 0.0
    cache_cost_s: float = 0.0
    stall_cost_s: float = 0.0
    breach_cost_s: float = 0.0
    answer_cost_s: float = 0.0
    total_s: float = 0.0


class Decision(msgspec.Struct, frozen=True):
    """Where a request goes.

    Attributes:
        prefill: Who computes the prompt, or None if `decode` does so itself.
        decode: Who writes the answer.
        reason: Why.
        predicted: The choice in figures.
    """

    prefill: Destination | None
    decode: Destination
    reason: Reason
    predicted: Terms

    @property
    def reader(self) -> Destination:
        """Who computes the prompt, whichever leg that is."""
        return self.prefill or self.decode


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One candidate of an explanation, ready for JSON.

    Attributes:
        prefill: Who would compute the prompt: engine id, or None for decode itself.
        is_overloaded: Whether a member of it is beyond the load bound.
        is_chosen: Whether it is the choice.
    """

    prefill: str | None
    prefill_rank: int = 0
    decode: str
    decode_rank: int = 0
    is_overloaded: bool = False
    is_chosen: bool = False
    terms: Terms


class Policy(Protocol):
    """Chooses among destinations that are all able to serve.

    Neither method changes load: who asks reserves at once.
    """

    def choose(self, ask: Ask, view: FleetView, now: float) -> Decision | None:
        """Choose, or None if nobody can write the answer. Pure but for chance and rotation."""

    def explain(self, ask: Ask, view: FleetView, now: float) -> list[Row]:
        """Every candidate with its terms, the choice marked; where costs tie, one of them."""

    def forget(self, engine_id: str) -> None:
        """Drop whatever is kept of a gone engine."""
