"""What does not depend on the request, kept per destination until it changes.

A decision looks at every destination once, so what it computes there is what it costs. Queues and
step times change with a destination's own load and coefficients only, of which a request changes
two; the rest are quoted from here.
"""

from collections.abc import Sequence

from transload_router.core.cost import CostModel, DestinationCost
from transload_router.core.load import EngineLoad, Load
from transload_router.core.policy.types import Destination
from transload_router.core.types import DestinationKey, Engine


class Quote:
    """One destination's prices but for the request; see `DestinationCost` for the terms.

    Attributes:
        pass_s: Of a step of a prefill, the answers beside it included.
        rest_s: The queue behind its head.
        head_s: The oldest prefill as a whole.
        head_began_s: Since when it runs.
        beside: Legs that another answer would be written beside.
        step_s: A step with all that is reserved.
    """

    __slots__ = (
        "area_s",
        "beside",
        "context_s",
        "engine",
        "head_began_s",
        "head_s",
        "load",
        "load_version",
        "max_batch_tokens",
        "model",
        "model_version",
        "num_decoding",
        "num_prefilling",
        "num_tokens",
        "pass_s",
        "rest_s",
        "sequence_s",
        "step_s",
        "token_s",
    )

    def __init__(self, engine: Engine, load: EngineLoad, model: DestinationCost) -> None:
        self.engine = engine
        self.load = load
        self.model = model
        self.load_version = load.version
        self.model_version = model.version
        self.num_prefilling = load.num_prefilling
        self.num_decoding = load.num_decoding
        self.num_tokens = load.num_tokens
        self.beside = load.num_requests
        self.pass_s = model.pass_s + model.beside_s(load)
        self.token_s = model.token_s
        self.area_s = model.area_s
        self.max_batch_tokens = model.max_batch_tokens
        self.sequence_s = model.sequence_s
        self.context_s = model.context_s
        self.step_s = model.decode_step_s(load.num_requests, load.num_tokens)
        self.rest_s, self.head_s, self.head_began_s = model.queue_parts(load)

    def queue_s(self, now: float) -> float:
        """See `DestinationCost.queue_s`."""
        if not self.num_prefilling:
            return 0.0
        return self.rest_s + abs(self.head_s - (now - self.head_began_s))


class Quotes:
    """All destinations' quotes; `of` renews those whose load or coefficients have changed."""

    def __init__(self, load: Load, costs: CostModel) -> None:
        self._load = load
        self._costs = costs
        self._quotes: dict[DestinationKey, Quote] = {}

    def __len__(self) -> int:
        return len(self._quotes)

    def of(self, destinations: Sequence[Destination]) -> list[Quote]:
        """Their quotes, in their order, valid until the next change of load or costs."""
        quotes = self._quotes
        found = []
        for one in destinations:
            quote = quotes.get(one.key)
            if (
                quote is None
                or quote.load_version != quote.load.version
                or quote.model_version != quote.model.version
                or quote.engine is not one.engine
            ):
                load = self._load.of(one.engine, one.rank)
                quote = quotes[one.key] = Quote(one.engine, load, self._costs.of(one.key))
            found.append(quote)
        return found

    def forget(self, engine_id: str) -> None:
        """Drop a gone engine's."""
        for key in [key for key in self._quotes if key[0] == engine_id]:
            del self._quotes[key]
