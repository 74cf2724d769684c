"""What no policy could exceed: a bound on goodput from capacity and cache alone.

Every request costs engines at least its prompt less what earlier prompts could have left in an
endless shared cache, and its own share of the steps that write its answer. A request whose prompt
alone takes longer than the SLO is never good. Of the others as many as possible are good if the
cheapest are served first and fill the engines' time without a gap; nothing here says that a policy
which serves everybody could do so.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from simulation.measure import Slo
from simulation.profiles import StepTimes
from simulation.trace import BLOCK_TOKENS, Request


@dataclass(frozen=True, slots=True)
class Bound:
    """At one speed.

    Attributes:
        offered_per_s: Requests.
        too_long_share: Requests whose uncached prompt alone takes longer than the SLO.
        goodput_per_s: At most.
    """

    offered_per_s: float
    too_long_share: float
    goodput_per_s: float


def bound_of(
    requests: Sequence[Request], num_engines: int, times: StepTimes, slo: Slo, speed: float
) -> Bound:
    """The bound of a fleet whose engines may all do both."""
    span_s = max(1e-9, requests[-1].arrival_s / speed)
    work = list(_least_work(requests, times))
    possible = sorted(
        prefill_s + decode_s for prefill_s, decode_s in work if prefill_s <= slo.first_token_s
    )
    left_s = num_engines * (span_s + slo.first_token_s)
    num_good = 0
    for seconds in possible:
        left_s -= seconds
        if left_s < 0.0:
            break
        num_good += 1
    return Bound(
        offered_per_s=len(requests) / span_s,
        too_long_share=1.0 - len(possible) / len(requests),
        goodput_per_s=num_good / span_s,
    )


def _least_work(requests: Sequence[Request], times: StepTimes) -> Iterator[tuple[float, float]]:
    """Of each request the seconds of its prompt, and those it adds to steps of its answer."""
    held: set[int] = set()
    for request in requests:
        keys = request.blocks[: request.most_cached_blocks]
        count = next((n for n, key in enumerate(keys) if key not in held), len(keys))
        num_cached = count * BLOCK_TOKENS
        held.update(request.blocks[: request.num_whole_blocks])
        context = request.num_prompt_tokens + request.num_answer_tokens // 2
        yield (
            times.chunk_s(request.num_prompt_tokens - num_cached, num_cached),
            request.num_answer_tokens * times.decode_s(1, context),
        )
