"""What a request teaches as it goes: times for the cost model, hits for whoever predicted them."""

import asyncio
from time import monotonic

from transload_router.app.choosing import expect_blocks
from transload_router.app.prompts import ASKABLE
from transload_router.app.request import GenerateRequest
from transload_router.app.state import Router
from transload_router.core.kv_events.messages import StreamState
from transload_router.core.policy import Reason
from transload_router.core.routing import Choice
from transload_router.core.sse import split_events
from transload_router.core.usage import streamed_tokens

# Blocks that an engine reported and whose events were lost are believed for so long; the engine
# will not announce them again while it keeps them.
LEARNED_S = 60.0


class Learning:
    """One request's lessons. Each is given at most once per choice.

    Attributes:
        num_cached_tokens: What the engine that read the prompt reported of its cache, once known.
    """

    def __init__(self, router: Router, request: GenerateRequest) -> None:
        self._router = router
        self._request = request
        self._choice: Choice | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._is_followed = False
        self._cause = "unexplained"
        self.num_cached_tokens: int | None = None

    def begin(self, choice: Choice) -> None:
        """Another choice was made, and its legs begin."""
        self._cancel_timer()
        self._choice = choice
        reason = choice.decision.reason
        self._router.metrics.decisions.add(reason.value)
        if reason is not Reason.HANDED_OFF:
            source = choice.decision.reader
            self._is_followed = self._router.is_followed(source.key)
            self._cause = self._find_cause(choice)
            self.num_cached_tokens = None

    def note_cached(self, num_tokens: int | None) -> None:
        """The engine that read the prompt says how much it had; None where it does not."""
        choice = self._choice
        if num_tokens is None or choice is None or self.num_cached_tokens is not None:
            return
        self.num_cached_tokens = num_tokens
        if self._request.prompt is None and self._request.text is None:
            # Nothing was predicted: the policy does not look at caches.
            return
        metrics, decision = self._router.metrics, choice.decision
        predicted = decision.predicted.num_cached_tokens
        metrics.cached_tokens.add("predicted", amount=predicted)
        metrics.cached_tokens.add("reported", amount=num_tokens)
        outcome = "exact" if predicted == num_tokens else "over"
        metrics.predictions.add(self.basis, outcome if predicted >= num_tokens else "under")
        if num_tokens != predicted:
            cause = self._cause
            if cause == "unexplained":
                # Whoever came later may have been served first.
                cause = self._find_cause(choice)
            metrics.prediction_errors.add(cause, amount=abs(num_tokens - predicted))
        source = decision.reader
        is_told = self._router.streams.get(source.key) is StreamState.EXACT
        if num_tokens > predicted and self._request.prompt is not None and not is_told:
            self._router.index.predict(
                source.key, self._request.prompt, monotonic(), LEARNED_S, num_tokens
            )

    def note_length(self, num_tokens: int | None) -> None:
        """The engine that read the prompt says how long it is; None where it does not."""
        request = self._request
        if num_tokens is None or request.text is None or request.prompt_source not in ASKABLE:
            return
        # Media and lists of ids have other lengths as text; only text without ids teaches.
        self._router.texts.observe_length(request.text.num_bytes, num_tokens)

    def note_events(self, events: bytes) -> None:
        """Whole events of a stream, one of which may tell the same."""
        if b"cache" in events:
            for event in split_events(events):
                self.note_cached(streamed_tokens(event))

    @property
    def basis(self) -> str:
        """What the prediction of cached tokens stands on."""
        return "text" if self._request.prompt is None or not self._is_followed else "events"

    def _find_cause(self, choice: Choice) -> str:
        """What a wrong prediction of this choice would be due to; the first that applies."""
        source = choice.decision.reader
        if self.basis == "text":
            return "estimated"
        if self._router.streams.get(source.key) is not StreamState.EXACT:
            return "part_unknown"
        load = self._router.load.of(source.engine, source.rank)
        return "concurrent" if load.num_requests > 1 else "unexplained"

    def note_sent(self, *, has_handoff: bool, is_stream: bool) -> None:
        """Decode's request goes out now."""
        choice = self._choice
        if choice is None:
            return
        if has_handoff:
            self._router.routing.observe_sent(choice, monotonic())
            expect_blocks(self._router, self._request, choice.decision.decode, choice)
        if not is_stream:
            # Nobody tells when its first token is there; by then it no longer waits for a prefill.
            seconds = 0.0 if has_handoff else choice.decision.predicted.first_token_s
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(seconds, lambda: choice.decode.prefilled(monotonic()))

    def note_first_token(self) -> None:
        """The first event of the answer has come."""
        if self._choice is not None:
            self._router.routing.observe_first_token(self._choice, monotonic())

    def note_end(self, num_tokens: int) -> None:
        """The answer is whole; `num_tokens` as it says itself, or as many as arrivals tell."""
        self._cancel_timer()
        if self._choice is not None:
            self._router.routing.observe_end(self._choice, monotonic(), num_tokens)

    def close(self) -> None:
        """Nothing more is to come."""
        self._cancel_timer()

    def _cancel_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
