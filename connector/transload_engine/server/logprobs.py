"""Logprobs in the shapes of vLLM 0.32.0's answers.

What was chosen comes first among its alternatives, as vLLM's sampler puts it, then the likeliest:
so `logprobs=n` of a completion tells up to n + 1 tokens, `top_logprobs=n` of a chat at most n.
"""

from collections.abc import Callable, Sequence
from typing import Any, Final

from transload_engine.core.runner import Chosen

LEAST: Final = -9999.0
"""Stands for no probability at all: JSON has no infinity."""

Name = Callable[[int], str]
"""A token as it is spelled."""


def of_completion(
    chosen: Sequence[Chosen], name: Name, num_asked: int, offset: int
) -> dict[str, Any]:
    """The `logprobs` of a completion's choice.

    Args:
        chosen: Its tokens, or those of one event.
        name: Spells them.
        num_asked: As asked for.
        offset: Characters told before, as `name` spells them.
    """
    offsets = []
    for each in chosen:
        offsets.append(offset)
        offset += len(name(each.token_id))
    return {
        "text_offset": offsets,
        "token_logprobs": [_least(each.logprob) for each in chosen],
        "tokens": [name(each.token_id) for each in chosen],
        "top_logprobs": [
            {name(token): logprob for token, logprob in _told(each)[: num_asked + 1]}
            for each in chosen
        ],
    }


def of_chat(chosen: Sequence[Chosen], name: Name, num_asked: int) -> dict[str, Any]:
    """The `logprobs` of a chat's choice."""
    content = []
    for each in chosen:
        told = [_entry(token, logprob, name) for token, logprob in _told(each)[:num_asked]]
        content.append({**_entry(each.token_id, _least(each.logprob), name), "top_logprobs": told})
    return {"content": content}


def _told(chosen: Chosen) -> list[tuple[int, float]]:
    told = {chosen.token_id: _least(chosen.logprob)}
    told |= {token: _least(logprob) for token, logprob in chosen.alternatives}
    return list(told.items())


def _entry(token: int, logprob: float, name: Name) -> dict[str, Any]:
    spelled = name(token)
    return {"token": spelled, "logprob": logprob, "bytes": list(spelled.encode("utf-8", "replace"))}


def _least(logprob: float | None) -> float:
    return LEAST if logprob is None else max(logprob, LEAST)
