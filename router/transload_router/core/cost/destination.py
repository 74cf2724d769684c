"""How long one destination takes to compute prompts and to write tokens.

**Prefill.** Seconds = steps * pass_s + tokens * token_s + area * area_s, where a step computes at
most `max_batch_tokens`, and area is tokens times the mean context they attend to. What waits ahead
is computed in the same steps, so several small prompts together cost the overhead of one. Every
step also carries the answers that are being written here.

**Decode.** Seconds a token = step_s + sequences * sequence_s + context tokens * context_s.
"""

from dataclasses import dataclass, field

from transload_router.core.cost.regression import Regression, Vector, dot
from transload_router.core.load import EngineLoad, Reservation

# vLLM's own default for servers (max_num_batched_tokens, 0.32.0: 8192 on GPUs of 80 GB, else 2048);
# only the share of overheads in a chunked prompt depends on it.
MAX_BATCH_TOKENS = 8192
# Where a prior is believed: short, common and long prompts; few and many answers.
TYPICAL_PREFILLS = (
    (1.0, 512.0, 512.0 * 256),
    (1.0, 4096.0, 4096.0 * 2048),
    (4.0, 32e3, 32e3 * 16e3),
)
TYPICAL_STEPS = ((1.0, 1.0, 2e3), (1.0, 16.0, 64e3), (1.0, 64.0, 64e3))
PRIOR_STRENGTH = 0.3
# Prompts that end this much sooner after the former one than they take alone ran in its batch.
BATCH_SHARE = 0.25
# At most this share of a span is taken to be somebody else's prefill or step.
MAX_FOREIGN_SHARE = 0.8


@dataclass(slots=True)
class _Span:
    """Prompts that were computed together, back to back with nothing else."""

    begin_s: float
    end_s: float
    num_tokens: int
    area: int
    foreign_s: float


@dataclass(slots=True)
class DestinationCost:
    """The coefficients in force, and what they were learned from.

    Attributes:
        version: Grows with every change of a coefficient.
        heard_s: When something was last measured here.
    """

    pass_s: float = 0.0
    token_s: float = 0.0
    area_s: float = 0.0
    step_s: float = 0.0
    sequence_s: float = 0.0
    context_s: float = 0.0
    max_batch_tokens: int = MAX_BATCH_TOKENS
    version: int = 0
    heard_s: float = 0.0
    prefills: Regression = field(
        default_factory=lambda: Regression(TYPICAL_PREFILLS, PRIOR_STRENGTH)
    )
    steps: Regression = field(default_factory=lambda: Regression(TYPICAL_STEPS, PRIOR_STRENGTH))
    _span: _Span | None = None

    def prefill_s(self, num_tokens: int, prefill_area: float, load: EngineLoad) -> float:
        """Computing so much here, beside the answers being written."""
        num_steps = -(-num_tokens // self.max_batch_tokens)
        return (
            num_steps * (self.pass_s + self.beside_s(load))
            + num_tokens * self.token_s
            + prefill_area * self.area_s
        )

    def beside_s(self, load: EngineLoad) -> float:
        """What the answers being written here add to a step."""
        return load.num_decoding * self.sequence_s + load.num_context_tokens * self.context_s

    def queue_s(self, load: EngineLoad, now: float) -> float:
        """Until what was promised before is computed.

        The oldest prompt has been running since the last one ended. One that is overdue is
        expected to take as long again as it is late: that is how a stuck engine shows before it
        answers.
        """
        rest_s, head_s, head_began_s = self.queue_parts(load)
        return rest_s + abs(head_s - (now - head_began_s)) if load.num_prefilling else 0.0

    def queue_parts(self, load: EngineLoad) -> tuple[float, float, float]:
        """What waits behind the oldest prompt, the oldest prompt, and since when it runs."""
        if not load.num_prefilling:
            return 0.0, 0.0, 0.0
        head = next(iter(load.queue))
        work_s = self.prefill_s(load.num_prefill_tokens, load.prefill_area, load)
        head_s = min(work_s, self.prefill_s(head.num_prefill_tokens, head.prefill_area, load))
        return work_s - head_s, head_s, max(head.since_s, load.progressed_s)

    def decode_step_s(self, num_sequences: int, num_context_tokens: int) -> float:
        """One token of every answer."""
        return self.step_s + num_sequences * self.sequence_s + num_context_tokens * self.context_s

    def note_prefill(self, prompt: Reservation, load: EngineLoad, now: float) -> list[_Span]:
        """A prompt was computed; call before the reservation hears of it.

        Returns:
            Spans that are complete by this, to be learned from.
        """
        begin_s = max(prompt.since_s, load.progressed_s)
        alone_s = self.prefill_s(prompt.num_prefill_tokens, prompt.prefill_area, load)
        span = self._span
        if span is not None and begin_s <= span.end_s and now - begin_s < BATCH_SHARE * alone_s:
            span.end_s = now
            span.num_tokens += prompt.num_prefill_tokens
            span.area += prompt.prefill_area
            return []
        num_steps = -(-prompt.num_prefill_tokens // self.max_batch_tokens)
        self._span = _Span(
            begin_s,
            now,
            prompt.num_prefill_tokens,
            prompt.prefill_area,
            num_steps * self.beside_s(load),
        )
        return [span] if span is not None else []

    def take_span(self, now: float) -> list[_Span]:
        """The last span, if nothing can join it any more."""
        span = self._span
        if span is None or now - span.end_s < span.end_s - span.begin_s:
            return []
        self._span = None
        return [span]

    def features(self, span: _Span) -> tuple[Vector, float]:
        """What a span teaches: features, and the seconds that are the prefill's own."""
        num_steps = -(-span.num_tokens // self.max_batch_tokens)
        seconds = span.end_s - span.begin_s
        seconds -= min(span.foreign_s, MAX_FOREIGN_SHARE * seconds)
        return (float(num_steps), float(span.num_tokens), float(span.area)), seconds

    def learn_prefill(self, features: Vector, seconds: float, prior: Vector, now: float) -> None:
        """Take in one measured prefill."""
        expected_s = dot((self.pass_s, self.token_s, self.area_s), features)
        self.prefills.observe(features, seconds, expected_s)
        self.heard_s = now
        if self.prefills.is_due:
            self.pass_s, self.token_s, self.area_s = self.prefills.fit(prior)
            self.version += 1

    def learn_step(self, features: Vector, seconds: float, prior: Vector, now: float) -> None:
        """Take in one measured mean of steps."""
        expected_s = dot((self.step_s, self.sequence_s, self.context_s), features)
        self.steps.observe(features, seconds, expected_s)
        self.heard_s = now
        if self.steps.is_due:
            self.step_s, self.sequence_s, self.context_s = self.steps.fit(prior)
            self.version += 1

    def refit(self, prefill_prior: Vector, step_prior: Vector) -> None:
        """The fleet has changed, or time has passed."""
        self.pass_s, self.token_s, self.area_s = self.prefills.fit(prefill_prior)
        self.step_s, self.sequence_s, self.context_s = self.steps.fit(step_prior)
        self.version += 1
