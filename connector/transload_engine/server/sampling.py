"""What a body says of how tokens are chosen, for an engine that has a model to choose them.

**Rules**

* What the body leaves out is as the model's `generation_config.json` has it, then as in vLLM.
* Refusals of values are worded as vLLM 0.32.0's (`sampling_params.py`).
* What vLLM would act on and this engine cannot is refused by name, never passed over.
"""

import json
import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from transload_engine.core.runner import GREEDY_BELOW, Sampling
from transload_engine.server.wants import Body, Refusal

MAX_LOGPROBS: Final = 20
"""vLLM's default `--max-logprobs`."""
MAX_BIAS: Final = 100.0
"""Biases beyond are cut, as in vLLM."""
MIN_SEED: Final = -(1 << 63)
MAX_SEED: Final = (1 << 63) - 1
LEAST_TEMPERATURE: Final = 1e-2
"""vLLM's `_MAX_TEMP`: what is chosen by chance is not chosen at a lower temperature."""

_NEUTRAL: Final = {
    "temperature": 1.0,
    "top_p": 1.0,
    "top_k": 0,
    "min_p": 0.0,
    "presence_penalty": 0.0,
    "frequency_penalty": 0.0,
    "repetition_penalty": 1.0,
}

UNSERVED: Final[dict[str, tuple[object, ...]]] = {
    "allowed_token_ids": (None,),
    "bad_words": (None, []),
    "best_of": (None, 1),
    "chat_template": (None,),
    "continue_final_message": (None, False),
    "ec_transfer_params": (None, {}),
    "echo": (None, False),
    "logprob_token_ids": (None, []),
    "priority": (None, 0),
    "prompt_embeds": (None,),
    "prompt_logprobs": (None,),
    "repetition_detection": (None,),
    "response_format": (None, {"type": "text"}),
    "return_prompt_text": (None, False),
    "skip_special_tokens": (None, True),
    "stream_interval": (None, 1),
    "structured_outputs": (None,),
    "suffix": (None, ""),
    "thinking_token_budget": (None, -1),
    "tool_choice": (None, "none", "auto"),
    "truncate_prompt_tokens": (None,),
    "use_beam_search": (None, False),
    "watermarking": (None, False),
}
"""Fields of vLLM 0.32.0's requests that change its answers and are not served here, with the values
under which they change nothing. Of tools, the model sees what its template shows of them; calls in
its answer stay text."""


@dataclass(frozen=True)
class ModelDefaults:
    """What a model's folder says of generation.

    Attributes:
        eos_ids: Tokens that end answers besides the tokenizer's own.
        sampling: Values for what a body leaves out, by the names of bodies.
        max_tokens: Of an answer whose length nobody asked for; None for all that fits.
    """

    eos_ids: frozenset[int] = frozenset()
    sampling: dict[str, Any] = field(default_factory=dict)
    max_tokens: int | None = None

    @classmethod
    def read(cls, folder: Path, eos_ids: Iterable[int] = ()) -> "ModelDefaults":
        """From `generation_config.json`.

        Args:
            folder: The model's.
            eos_ids: That the model's own configuration names: used where there is no such file.

        Raises:
            ValueError: It is no JSON object, or its end-of-sequence tokens are none.
        """
        file = folder / "generation_config.json"
        if not file.exists():
            return cls(eos_ids=frozenset(eos_ids))
        config = json.loads(file.read_text())
        if not isinstance(config, dict):
            raise ValueError(f"{file}: expected a JSON object, got {type(config).__name__}")
        given = config.get("eos_token_id")
        ends = given if isinstance(given, list) else [] if given is None else [given]
        if not all(type(each) is int for each in ends):
            raise ValueError(f"{file}: eos_token_id is a token or a list of tokens; got {given!r}")
        return cls(
            eos_ids=frozenset(ends),
            sampling={name: config[name] for name in _NEUTRAL if config.get(name) is not None},
            max_tokens=config.get("max_new_tokens"),
        )


def refuse_unserved(body: Body, *, is_chat: bool) -> None:
    """Refuse a body that asks for what this engine cannot do.

    Raises:
        Refusal: As it says, naming the field.
    """
    for name, harmless in UNSERVED.items():
        if name in body and body[name] not in harmless:
            raise Refusal(f"`{name}` is not served by this engine", name)
    if body.get("add_special_tokens", not is_chat) is not (not is_chat):
        raise Refusal("`add_special_tokens` is not served by this engine", "add_special_tokens")


def read_sampling(
    body: Body, defaults: ModelDefaults, eos: int, vocab_size: int, *, is_chat: bool
) -> Sampling:
    """How the body wants tokens chosen.

    Args:
        body: Its shape is checked already.
        defaults: Of the model.
        eos: The tokenizer's end-of-sequence token.
        vocab_size: Of the model.
        is_chat: Whether it is a chat's.

    Raises:
        Refusal: A value is out of its range.
    """
    _check_lists(body)
    values = {name: _number(body, defaults, name) for name in _NEUTRAL}
    temperature = _temperature(values["temperature"])
    is_greedy = temperature == 0.0
    _check_counts(body, is_greedy=is_greedy)
    _check_penalties(values)
    top_p, top_k, min_p = _checked_cuts(values)
    stop_ids = {eos, *defaults.eos_ids, *(body.get("stop_token_ids") or ())}
    seed = body.get("seed")
    return Sampling(
        temperature=temperature,
        top_p=1.0 if is_greedy else top_p,
        top_k=0 if is_greedy else min(top_k, vocab_size),
        min_p=0.0 if is_greedy else min_p,
        presence_penalty=values["presence_penalty"],
        frequency_penalty=values["frequency_penalty"],
        repetition_penalty=values["repetition_penalty"],
        seed=None if seed == -1 else seed,
        num_logprobs=_num_logprobs(body, is_chat=is_chat),
        logit_bias=_bias(body, vocab_size),
        stop_ids=frozenset(each for each in stop_ids if 0 <= each < vocab_size),
        min_tokens=body.get("min_tokens") or 0,
    )


def _check_lists(body: Body) -> None:
    if not all(type(each) is int for each in body.get("stop_token_ids") or ()):
        given = body["stop_token_ids"]
        raise Refusal(f"stop_token_ids must contain only integers, got {given}.")
    stop = body.get("stop")
    if isinstance(stop, list) and not all(stop):
        raise Refusal("stop cannot contain an empty string.")


def _check_counts(body: Body, *, is_greedy: bool) -> None:
    count, least, seed = body.get("n") or 1, body.get("min_tokens") or 0, body.get("seed") or 0
    if count < 1:
        raise Refusal(f"n must be at least 1, got {count}.")
    if is_greedy and count > 1:
        raise Refusal(f"n must be 1 when using greedy sampling, got {count}.")
    if least < 0:
        raise Refusal(f"min_tokens must be greater than or equal to 0, got {least}.")
    if not MIN_SEED <= seed <= MAX_SEED:
        raise Refusal(f"seed must be a signed integer of 64 bits, got {seed}.", "seed")


def _number(body: Body, defaults: ModelDefaults, name: str) -> Any:
    given = body.get(name)
    if given is None:
        return defaults.sampling.get(name, _NEUTRAL[name])
    if not isinstance(given, int | float):
        raise Refusal(f"{name} must be a number, got {type(given).__name__}", name)
    return given


def _temperature(given: float) -> float:
    if not math.isfinite(given) or not 0.0 <= given <= 2.0:
        raise _outside("temperature", "[0, 2]", given)
    return 0.0 if given < GREEDY_BELOW else max(given, LEAST_TEMPERATURE)


def _check_penalties(values: dict[str, Any]) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        if not -2.0 <= values[name] <= 2.0:
            raise Refusal(f"{name} must be in [-2, 2], got {values[name]}.")
    penalty = values["repetition_penalty"]
    if not math.isfinite(penalty) or penalty <= 0.0:
        raise Refusal(f"repetition_penalty must be greater than zero, got {penalty}.")


def _checked_cuts(values: dict[str, Any]) -> tuple[float, int, float]:
    top_p, top_k, min_p = values["top_p"], values["top_k"], values["min_p"]
    if not 0.0 < top_p <= 1.0:
        raise _outside("top_p", "(0, 1]", top_p)
    if top_k < -1:
        raise Refusal(f"top_k must be 0 (disable), or at least 1, got {top_k}.")
    if not 0.0 <= min_p <= 1.0:
        raise Refusal(f"min_p must be in [0, 1], got {min_p}.")
    return top_p, max(top_k, 0), min_p


def _outside(name: str, bounds: str, given: float) -> Refusal:
    text = f"{name} must be in {bounds}, got {given}."
    return Refusal(f"{text} (parameter={name}, value={given})", name)


def _num_logprobs(body: Body, *, is_chat: bool) -> int | None:
    asked = body.get("logprobs")
    if is_chat:
        asked = (body.get("top_logprobs") or 0) if asked else None
    if asked is None:
        return None
    if type(asked) is not int or asked < 0:
        raise Refusal(f"logprobs must be non-negative, got {asked}.", "logprobs")
    if asked > MAX_LOGPROBS:
        text = f"Requested sample logprobs of {asked}, which is greater than max allowed"
        raise Refusal(
            f"{text}: {MAX_LOGPROBS} (parameter=logprobs, value={asked})",
            "logprobs",
        )
    return asked


def _bias(body: Body, vocab_size: int) -> tuple[tuple[int, float], ...]:
    given = body.get("logit_bias") or {}
    if not isinstance(given, dict):
        raise Refusal("logit_bias must be an object of biases by token id", "logit_bias")
    biases: dict[int, float] = {}
    for token, bias in given.items():
        if not token.isdecimal() or not isinstance(bias, int | float):
            text = "logit_bias contains key(s) that cannot be converted to integer token IDs"
            raise Refusal(f"{text}: {[token]}", "logit_bias")
        biases[int(token)] = min(MAX_BIAS, max(-MAX_BIAS, float(bias)))
    outside = [token for token in biases if token >= vocab_size]
    if outside:
        raise Refusal(
            f"token_id(s) {outside} in logit_bias contain out-of-vocab token ids. Vocabulary size: "
            f"{vocab_size}",
            "logit_bias",
        )
    return tuple(biases.items())
