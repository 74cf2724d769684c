"""How long an engine takes for its steps, in truth: parameters that no policy is told.

One step of an engine computes chunks of prompts and one token for each running answer:

    step_s = base + per_chunk_token * u + per_chunk_context * u * (context + u / 2)   for each chunk
             + per_sequence * n + per_context_token * sum of contexts                 for n answers

**Sources.** The `cpu` profile is fitted to a recording of the real engine (`recording.py`).
`h100-8b` is an assumption, not a measurement: a dense model of 8 billion parameters in bf16 (32
layers, hidden size 4,096, 8 KV heads of 128: 128 KiB of KV per token) on one H100 SXM.

* Prompt tokens: 16 GFLOP each at 400 TFLOP/s sustained (about 40 % of the data sheet's dense bf16
  figure) is 40 us, i.e. 25,000 tokens/s for short prompts.
* Attention: 4 * 4,096 * 32 FLOP per token and context token at the same rate is 1.3 ns, so that a
  prompt of 32,000 tokens runs at about 17,000 tokens/s.
* A decode step reads 16 GB of weights at 2.7 TB/s, 6 ms, and 2 ms go to launches and the host;
  each running answer adds 50 us (sampling, host) and each token of context 128 KiB at 2.6 TB/s,
  50 ns.
* KV moves at 20 GB/s per engine and direction (a 200 Gb/s NIC at 80 %), 5 ms to start.

They give decode steps of 10 to 30 ms at 4 to 30 answers of 12,000 tokens of context.
"""

import math
import random
from collections.abc import Callable
from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Seconds of one step's parts; see the module."""

    base_s: float
    per_chunk_token_s: float
    per_chunk_context_s: float
    per_sequence_s: float
    per_context_token_s: float

    def chunk_s(self, num_tokens: int, num_context: int) -> float:
        """A chunk of a prompt behind `num_context` tokens, without the step's base."""
        return self.per_chunk_token_s * num_tokens + self.per_chunk_context_s * num_tokens * (
            num_context + num_tokens / 2
        )

    def decode_s(self, num_sequences: int, num_context_tokens: int) -> float:
        """One token for each running answer, without the step's base."""
        return self.per_sequence_s * num_sequences + self.per_context_token_s * num_context_tokens

    def scaled(self, factor: float) -> "StepTimes":
        """An engine that takes `factor` times as long."""
        return StepTimes(
            self.base_s * factor,
            self.per_chunk_token_s * factor,
            self.per_chunk_context_s * factor,
            self.per_sequence_s * factor,
            self.per_context_token_s * factor,
        )


@dataclass(frozen=True, slots=True)
class Profile:
    """The truth about a fleet's engines and links.

    Attributes:
        budget_tokens: Tokens that one step may compute (`--max-num-batched-tokens`) on a prefill
            engine; `mixed_budget_tokens` on an engine that also decodes.
        http_s: One way between router and engine, including the engine's front end.
        event_delay_s: From the end of a step until its events are with the router.
        noise: Standard deviation of the logarithm of a step's time.
        spread: The same between engines, drawn once per engine.
        straggler_factor: How much longer a straggler takes.
    """

    name: str
    times: StepTimes
    kv_bytes_per_token: int
    link_bytes_per_s: float
    link_latency_s: float
    budget_tokens: int = 8192
    mixed_budget_tokens: int = 2048
    http_s: float = 0.002
    event_delay_s: float = 0.010
    event_loss: float = 0.0
    event_repair_s: float = 0.5
    noise: float = 0.05
    spread: float = 0.03
    num_stragglers: int = 0
    straggler_factor: float = 1.5

    def engine_times(self, number: int, seed: int) -> StepTimes:
        """The truth of one engine."""
        chance = random.Random(f"engine-{seed}-{number}")
        factor = math.exp(chance.gauss(0.0, self.spread))
        if number < self.num_stragglers:
            factor *= self.straggler_factor
        return self.times.scaled(factor)

    def noise_of(self, number: int, seed: int) -> Callable[[], float] | None:
        """Draws the factors of one engine's steps; None where there is no noise."""
        if not self.noise:
            return None
        chance, noise = random.Random(f"steps-{seed}-{number}"), self.noise
        return lambda: math.exp(chance.gauss(0.0, noise))

    def without_noise(self) -> "Profile":
        """The same with every engine and step exactly as the parameters say."""
        return replace(self, noise=0.0, spread=0.0, num_stragglers=0)


H100_8B = Profile(
    name="h100-8b",
    times=StepTimes(
        base_s=8e-3,
        per_chunk_token_s=40e-6,
        per_chunk_context_s=1.3e-9,
        per_sequence_s=50e-6,
        per_context_token_s=50e-9,
    ),
    kv_bytes_per_token=131072,
    link_bytes_per_s=20e9,
    link_latency_s=0.005,
)
