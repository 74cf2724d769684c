"""What a request costs on one destination: its own wait, and what it does to others.

**Theory.** Prices are seconds of somebody's time to the first token.

- *Own time*: queue, prefill, handoff, admission.
- *Delay*: a prefill of S seconds is waited for by whoever comes before the queue is empty again;
  about as many as wait there now. So the longer the queues, the more a cached prefix is worth, and
  an idle destination is free.
- *Cache*: tokens computed here although another destination has them fill blocks twice, and push
  out what others would have hit; and a conversation's later turns follow the copy.
- *Stall*: each step of a prefill is a step of every answer being written here.
- *Breach*: what of that goes beyond the inter-token target counts in full, where prefill
  destinations are there to spare the answers; a prompt that fits into a step within the target,
  or an engine that writes nothing, costs none of it.
- *Answer*: its own steps, longer with every answer beside it, and what it adds to theirs.

Seconds of answers count less than seconds to the first token (`answer_weight`): a reader waits for
the first token, and reads along after it.
"""

from collections.abc import Sequence

import msgspec

from transload_router.core.cost import CostModel, DestinationCost
from transload_router.core.load import EngineLoad, Load
from transload_router.core.policy.types import Ask, Destination, Terms
from transload_router.core.types import DestinationKey


class Weights(msgspec.Struct, frozen=True):
    """What an operator may weigh otherwise.

    The defaults come from simulations (`bench/simulate.py`, profile h100-8b): `answer_weight`,
    `load_factor` and `load_slack_s` of the first third of the conversation trace on 8 engines,
    mixed and 4 + 4, one to almost three times the trace's rate; the others of its first 4,000
    requests on 8 + 6 at medium and high load, with documents on 6 + 8 beside it.

    Attributes:
        answer_weight: What a second of waiting within an answer counts, of one to its first token.
            More shortens the time between tokens, less the time to the first one.
        delay_weight: Scales the delay of others; 0 makes each request look after itself. At 1.5
            split fleets serve 3 % more within 5 s and 100 ms at high load, mixed ones 5 % less.
        cache_weight: What computing again what another destination has costs later prompts, of
            what it costs this one. Two to three points more of all tokens hit than at 0.3, at the
            same waits. At 8 half a point more, of documents up to 1.4, but a prefix that all want
            stays on one engine for too long. Caches that are never full would not need it.
        inter_token_target_s: A prompt may make a step of running answers this long for nothing.
        breach_weight: What a second beyond that counts, of every answer that it holds up; 0 lets
            decode engines compute whatever is cheaper there. Of agents on 4 + 10 (medium load) 0,
            0.3, 1 and 3 give 143, 94, 36 and 35 ms as the 99th percentile between tokens, and 0.35,
            0.51, 0.61 and 0.68 s as the 90th of first tokens.
        breach_wait_s: No prompt waits for prefill much longer than this to spare answers: the
            price of a breach falls with the shortest queue there, and is zero at this one. Where
            the pool cannot keep up, decode engines have to help. On 8 + 6 at high load, whole
            conversation trace, breach_weight 2: 15.3 requests/s are served well at 1 s, 14.8 at
            3 s, 8.5 without an end.
        load_factor: Nobody takes a request while its promised work is beyond this many times the
            mean, `load_slack_s`, and one whole prompt of this length.
        load_slack_s: A shorter queue is nobody's overload, however short all others are.
        tie_share: Costs this close, as a share of the cheapest, are ties, and broken by chance.
    """

    answer_weight: float = 0.07
    delay_weight: float = 0.5
    cache_weight: float = 4.0
    inter_token_target_s: float = 0.05
    breach_weight: float = 1.0
    breach_wait_s: float = 1.0
    load_factor: float = 2.0
    load_slack_s: float = 1.0
    tie_share: float = 0.02


class Prefill(msgspec.Struct, gc=False):
    """Computing the prompt on one destination; `cost_s` is the sum of all its prices."""

    num_cached_tokens: int
    num_uncached_tokens: int
    queue_s: float
    prefill_s: float
    delay_s: float
    cache_s: float
    stall_s: float
    breach_s: float
    cost_s: float


class Decode(msgspec.Struct, gc=False):
    """Writing the answer on one destination; `cost_s` is without its queue."""

    num_moved_tokens: int
    queue_s: float
    admission_s: float
    answer_s: float
    cost_s: float


class Prices:
    """One request's prices; valid at the moment it was made for.

    Args:
        ask: The request.
        load: Everybody's load.
        costs: Everybody's times.
        weights: How to weigh them.
        now: Monotonic seconds.

    Attributes:
        match: Who holds what.
        num_tokens: Of the prompt.
        num_answer: Expected of the answer.
        most_held: The longest prefix that anybody holds.
        breach_weight: See `Weights`; less where no prefill destination could take it soon.
    """

    def __init__(
        self,
        ask: Ask,
        load: Load,
        costs: CostModel,
        weights: Weights,
        now: float,
        *,
        breach_weight: float,
    ) -> None:
        self._load = load
        self._costs = costs
        self._weights = weights
        self._now = now
        self.match = ask.match
        self.breach_weight = breach_weight
        self.num_tokens = max(1, ask.num_prompt_tokens)
        self.num_answer = costs.expected_answer(ask.num_answer_tokens)
        held = max((hit.num_tokens for hit in ask.match.values()), default=0)
        self.most_held = min(held, self.num_tokens - 1)

    def prefill(self, destination: Destination, load: EngineLoad) -> Prefill:
        """The prompt computed here."""
        num_tokens = self.num_tokens
        key = destination.key
        model = self._costs.of(key)
        hit = self.match.get(key)
        cached = 0 if hit is None else min(hit.num_tokens, num_tokens - 1)
        uncached = num_tokens - cached
        seconds = model.prefill_s(uncached, uncached * (cached + uncached * 0.5), load)
        queue_s = model.queue_s(load, self._now) if load.num_prefilling else 0.0
        delay_s = self._weights.delay_weight * load.num_prefilling * seconds
        cache_s = 0.0
        if self.most_held > cached:
            cache_s = (self.most_held - cached) * self._weights.cache_weight * model.token_s
        stall_s = self._weights.answer_weight * load.num_decoding * seconds
        breach_s = self._breach_s(seconds, queue_s, load, model)
        cost_s = queue_s + seconds + delay_s + cache_s + stall_s + breach_s
        return Prefill(
            cached, uncached, queue_s, seconds, delay_s, cache_s, stall_s, breach_s, cost_s
        )

    def _breach_s(
        self, seconds: float, queue_s: float, load: EngineLoad, model: DestinationCost
    ) -> float:
        """Steps beyond the target; where steps already are, what they are made longer by."""
        if not load.num_decoding or not self.breach_weight:
            return 0.0
        room_s = max(
            self._weights.inter_token_target_s - queue_s, model.pass_s + model.beside_s(load)
        )
        return self.breach_weight * load.num_decoding * max(0.0, seconds - room_s)

    def decode(self, destination: Destination, load: EngineLoad) -> Decode:
        """The answer written here, from blocks that are here."""
        key = destination.key
        model = self._costs.of(key)
        hit = self.match.get(key)
        moved = self.num_tokens
        if hit is not None:
            moved -= min(hit.num_tokens, moved)
        beside = load.num_requests
        added_s = model.sequence_s + model.context_s * self.num_tokens
        step_s = model.decode_step_s(beside, load.num_tokens) + added_s
        queue_s = model.queue_s(load, self._now) if load.num_prefilling else 0.0
        answer_s = self._weights.answer_weight * self.num_answer * (step_s + beside * added_s)
        return Decode(moved, queue_s, step_s, answer_s, step_s + answer_s)

    def handoff_s(self, prefill: DestinationKey, decode: DestinationKey, num_moved: int) -> float:
        """Blocks moved from one to the other."""
        latency, token_s = self._costs.links.of(prefill, decode)
        return latency + num_moved * token_s

    def least_handoff_s(self, decode: DestinationKey, num_moved: int) -> float:
        """No prefill destination hands off to this one faster."""
        latency, token_s = self._costs.links.floor(decode)
        return latency + num_moved * token_s

    def whole_prompt_s(self, destination: Destination, load: EngineLoad) -> float:
        """Computing the whole prompt, nothing cached."""
        num_tokens = self.num_tokens
        model = self._costs.of(destination.key)
        return model.prefill_s(num_tokens, num_tokens * num_tokens * 0.5, load)


def breach_weight(weights: Weights, queues: Sequence[float]) -> float:
    """What a breach weighs where these are the queues of those who could prefill instead."""
    if not queues:
        return 0.0
    return weights.breach_weight * max(0.0, 1.0 - min(queues) / weights.breach_wait_s)


def local_terms(prefill: Prefill, decode: Decode) -> Terms:
    """One destination does both."""
    own = prefill.queue_s + prefill.prefill_s + decode.admission_s
    return Terms(
        num_cached_tokens=prefill.num_cached_tokens,
        num_uncached_tokens=prefill.num_uncached_tokens,
        queue_s=prefill.queue_s,
        prefill_s=prefill.prefill_s,
        admission_s=decode.admission_s,
        first_token_s=own,
        delay_cost_s=prefill.delay_s,
        cache_cost_s=prefill.cache_s,
        stall_cost_s=prefill.stall_s,
        breach_cost_s=prefill.breach_s,
        answer_cost_s=decode.answer_s,
        total_s=prefill.cost_s + decode.cost_s,
    )


def split_terms(prefill: Prefill | None, handoff_s: float, decode: Decode) -> Terms:
    """Two destinations share it; without `prefill` the first has done its part."""
    one = prefill if prefill is not None else Prefill(0, 0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    admission_s = decode.queue_s + decode.admission_s
    return Terms(
        num_cached_tokens=one.num_cached_tokens,
        num_uncached_tokens=one.num_uncached_tokens,
        num_moved_tokens=decode.num_moved_tokens,
        queue_s=one.queue_s,
        prefill_s=one.prefill_s,
        handoff_s=handoff_s,
        admission_s=admission_s,
        first_token_s=one.queue_s + one.prefill_s + handoff_s + admission_s,
        delay_cost_s=one.delay_s,
        cache_cost_s=one.cache_s,
        stall_cost_s=one.stall_s,
        breach_cost_s=one.breach_s,
        answer_cost_s=decode.answer_s,
        total_s=one.cost_s + handoff_s + decode.queue_s + decode.cost_s,
    )
