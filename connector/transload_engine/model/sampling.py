"""Choosing a token from its logits, in the order and with the meanings of vLLM's sampler.

Raw logits give what is reported; minimum length, bias and penalties change what is chosen;
temperature, `min_p`, `top_k` and `top_p` (in this order) what is drawn from. Knows one request at a
time, so that nobody's tokens depend on who is computed beside them.
"""

import hashlib
import random
from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor

from transload_engine.core.runner import GREEDY_BELOW, Chosen, Sampling


class Draws:
    """Where chance comes from: numbers that are evenly distributed from 0 to 1, 1 excluded.

    Args:
        seed: Of the draws of requests without a seed.
    """

    def __init__(self, seed: int | None = None) -> None:
        self._own = random.Random(seed)

    def next(self, seed: int | None, num_drawn: int) -> float:
        """The number for a request's token; with a seed always the same for the same arguments."""
        if seed is None:
            return self._own.random()
        digest = hashlib.blake2b(f"{seed} {num_drawn}".encode(), digest_size=8).digest()
        # The 53 bits that a float between 0 and 1 has at least.
        return (int.from_bytes(digest, "big") >> 11) * 2.0**-53


def choose(
    logits: Tensor, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int], draw: float
) -> Chosen:
    """Choose a token.

    Args:
        logits: `[vocab_size]`, f32; not changed.
        sampling: Its tokens are of the vocabulary.
        prompt: The request's prompt.
        answer: The tokens behind it so far.
        draw: Of `Draws`; decides where the temperature is not 0.
    """
    changed = _changed(logits, sampling, prompt, answer)
    if sampling.temperature < GREEDY_BELOW:
        token_id = int(changed.argmax())
    else:
        token_id = _drawn(_cut(changed / sampling.temperature, sampling), draw)
    return _reported(token_id, logits, sampling.num_logprobs)


def _changed(
    logits: Tensor, sampling: Sampling, prompt: Sequence[int], answer: Sequence[int]
) -> Tensor:
    """Logits in new memory, with what counts for the likeliest token as well."""
    changed = logits.clone()
    if len(answer) < sampling.min_tokens:
        changed[list(sampling.stop_ids)] = -torch.inf
    for token_id, bias in sampling.logit_bias:
        changed[token_id] += bias
    if sampling.repetition_penalty != 1:
        seen = list({*prompt, *answer})
        penalty = sampling.repetition_penalty
        of_seen = changed[seen]
        changed[seen] = torch.where(of_seen > 0, of_seen / penalty, of_seen * penalty)
    if sampling.frequency_penalty or sampling.presence_penalty:
        counts = Counter(answer)
        numbers = torch.tensor(list(counts.values()), dtype=torch.float32)
        penalties = sampling.frequency_penalty * numbers + sampling.presence_penalty
        changed[list(counts)] -= penalties
    return changed


def _cut(logits: Tensor, sampling: Sampling) -> Tensor:
    """The logits, minus infinity for tokens that cannot be drawn."""
    if sampling.min_p > 0:
        probabilities = logits.softmax(-1)
        logits = logits.masked_fill(
            probabilities < sampling.min_p * probabilities.max(), -torch.inf
        )
    if 0 < sampling.top_k < len(logits):
        least = logits.topk(sampling.top_k).values[-1]
        logits = logits.masked_fill(logits < least, -torch.inf)
    if sampling.top_p < 1:
        probabilities, order = logits.softmax(-1).sort(descending=True, stable=True)
        before = probabilities.cumsum(-1) - probabilities
        surplus = before >= sampling.top_p
        surplus[0] = False
        logits = logits.index_fill(0, order[surplus], -torch.inf)
    return logits


def _drawn(logits: Tensor, draw: float) -> int:
    """The token in whose share of the cumulated probability, by ascending id, the draw falls."""
    cumulated = logits.softmax(-1, dtype=torch.float64).cumsum(-1)
    total = cumulated[-1]
    found = torch.searchsorted(cumulated, draw * total, right=True)
    # Rounding could make the product the total itself: that is still the last token with a share.
    return int(torch.minimum(found, torch.searchsorted(cumulated, total)))


def _reported(token_id: int, logits: Tensor, num_logprobs: int | None) -> Chosen:
    if num_logprobs is None:
        return Chosen(token_id)
    logprobs = logits.log_softmax(-1)
    own = logprobs[token_id]
    likeliest = logprobs.topk(min(num_logprobs, len(logprobs)))
    return Chosen(
        token_id,
        logprob=own.item(),
        rank=int((logprobs > own).sum()) + 1,
        alternatives=tuple(zip(likeliest.indices.tolist(), likeliest.values.tolist(), strict=True)),
    )
