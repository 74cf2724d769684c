"""All destinations' costs for one request, in as few operations as that takes.

The sums are those of `pricing`, term by term, which explains them and is what a choice is reported
by; here they are folded together.
"""

from collections.abc import Sequence

from transload_router.core.policy.pricing import Prices, Weights
from transload_router.core.policy.quotes import Quote
from transload_router.core.policy.types import Destination


class Scan:
    """One pool's costs; the lists run in parallel to its destinations.

    Attributes:
        queues: Seconds until what was promised before is computed.
        computing: Cost of computing the prompt there, queue included.
        writing: Cost of writing the answer there, queue not included.
        moved: Tokens a handoff to there has to carry.
        is_full: Whether the load bound shuts it.
    """

    __slots__ = ("computing", "destinations", "is_full", "moved", "queues", "quotes", "writing")

    def __init__(self, destinations: Sequence[Destination], quotes: list[Quote], now: float):
        self.destinations = destinations
        self.quotes = quotes
        self.queues = [quote.queue_s(now) if quote.num_prefilling else 0.0 for quote in quotes]
        self.computing: list[float] = []
        self.writing: list[float] = []
        self.moved: list[int] = []
        self.is_full = [False] * len(quotes)

    def price_prefill(self, prices: Prices, weights: Weights) -> None:
        """Fill in `computing`."""
        match, num_tokens, most = prices.match, prices.num_tokens, prices.most_held
        last = num_tokens - 1
        answer_weight, delay_weight = weights.answer_weight, weights.delay_weight
        target_s = weights.inter_token_target_s
        breach_weight = prices.breach_weight
        append = self.computing.append
        for one, quote, queue_s in zip(self.destinations, self.quotes, self.queues, strict=True):
            hit = match.get(one.key)
            cached = 0 if hit is None else hit.num_tokens
            if cached > last:
                cached = last
            uncached = num_tokens - cached
            steps = -(-uncached // quote.max_batch_tokens)
            seconds = steps * quote.pass_s + uncached * (
                quote.token_s + (cached + uncached * 0.5) * quote.area_s
            )
            others = answer_weight * quote.num_decoding + delay_weight * quote.num_prefilling
            cost = queue_s + seconds * (1.0 + others)
            if breach_weight and quote.num_decoding:
                room_s = target_s - queue_s
                beyond_s = seconds - (room_s if room_s > quote.pass_s else quote.pass_s)
                if beyond_s > 0.0:
                    cost += breach_weight * quote.num_decoding * beyond_s
            if cached < most:
                cost += (most - cached) * weights.cache_weight * quote.token_s
            append(cost)

    def price_decode(self, prices: Prices, weights: Weights) -> None:
        """Fill in `writing` and `moved`."""
        match, num_tokens = prices.match, prices.num_tokens
        answer = weights.answer_weight * prices.num_answer
        for one, quote in zip(self.destinations, self.quotes, strict=True):
            hit = match.get(one.key)
            held = 0 if hit is None else hit.num_tokens
            added_s = quote.sequence_s + quote.context_s * num_tokens
            step_s = quote.step_s + added_s
            self.writing.append(step_s + answer * (step_s + quote.beside * added_s))
            self.moved.append(num_tokens - held if held < num_tokens else 0)

    def bound(self, prices: Prices, weights: Weights, *, is_decode: bool) -> None:
        """Fill in `is_full`: see `Weights.load_factor`."""
        quotes, num = self.quotes, max(1, len(self.quotes))
        factor = weights.load_factor
        most_s = factor * sum(self.queues) / num + weights.load_slack_s
        for at, queue_s in enumerate(self.queues):
            if queue_s > most_s:
                whole_s = prices.whole_prompt_s(self.destinations[at], quotes[at].load)
                self.is_full[at] = queue_s > most_s + whole_s
        if is_decode:
            most_s = factor * sum([quote.step_s for quote in quotes]) / num
            for at, quote in enumerate(quotes):
                if quote.step_s > most_s:
                    self.is_full[at] = True

    def open(self) -> list[int]:
        """Who may still take a request; everybody if nobody may."""
        spare = [at for at, is_full in enumerate(self.is_full) if not is_full]
        return spare or list(range(len(self.is_full)))
