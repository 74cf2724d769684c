"""What the policy is told of a request, and what the indexes are told of its choice."""

from time import monotonic

from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core.index.approximate import CHUNK_BYTES
from transload_router.core.index.hits import Match
from transload_router.core.policy import Ask, Destination
from transload_router.core.routing import Choice
from transload_router.core.types import DestinationKey

# A prompt's affinity is the key of the block that ends about here: behind system prompts that
# everybody shares, before what makes each turn of a conversation different. The second 512-token
# block is what conversations of a production trace share least with each other.
AFFINITY_TOKENS = 1024
# Beyond the predicted first token, blocks are expected for so long without an event.
EXPECT_BEYOND_S = 5.0
# However long the queue, not longer than this.
MAX_EXPECT_S = 120.0

# Why one engine serves a request that computes its whole prompt anew, whatever is cached
# (`sampling_params.py:skip_reading_prefix_cache` @ 0.32).
_READS_NO_CACHE = frozenset({"prompt_logprobs", "skip_reading_prefix_cache"})


def make_ask(
    router: Router,
    request: GenerateRequest,
    *,
    may_split: bool,
    handoff_from: DestinationKey | None = None,
) -> Ask:
    """What a policy may know of a request, with who holds how much of its prompt."""
    match = _match(router, request)
    return Ask(
        model=request.model,
        num_prompt_tokens=request.num_prompt_tokens,
        num_answer_tokens=request.num_answer_tokens,
        may_split=may_split,
        session=request.session,
        affinity=_affinity(request),
        match=match,
        is_exact=request.prompt is not None,
        handoff_from=handoff_from,
    )


def _match(router: Router, request: GenerateRequest) -> Match:
    """Exact hits by events; by text for destinations whose caches are not followed."""
    if request.local_reason in _READS_NO_CACHE:
        return {}
    match: Match = router.index.match(request.prompt) if request.prompt is not None else {}
    if request.text is not None:
        for key, hit in router.texts.match(request.text).items():
            if request.prompt is None or not router.is_followed(key):
                match.setdefault(key, hit)
    return match


def _affinity(request: GenerateRequest) -> int | None:
    """Of the keys that the match has needed already, whatever the block size."""
    prompt = request.prompt
    for (size, _group), keys in prompt.keys_by_block.items() if prompt is not None else ():
        if keys:
            return keys[min(len(keys), AFFINITY_TOKENS // size) - 1]
    if request.text is not None and request.text.keys:
        keys = request.text.keys
        return keys[min(len(keys), AFFINITY_TOKENS * 4 // CHUNK_BYTES) - 1]
    return None


def expect_blocks(
    router: Router, request: GenerateRequest, destination: Destination, choice: Choice
) -> None:
    """Tell the indexes where the prompt's blocks are going to be."""
    if request.text is not None:
        router.texts.predict(destination.key, request.text)
    if request.prompt is not None:
        seconds = choice.decision.predicted.first_token_s + EXPECT_BEYOND_S
        now = monotonic()
        router.index.predict(destination.key, request.prompt, now, min(seconds, MAX_EXPECT_S))
