"""What engines' whole answers tell besides their text: a handoff, counts, the prompt's ids."""

import logging
from dataclasses import dataclass

from transload_router.core.bodies.endpoints import HANDOFF_MEMBER, Endpoint
from transload_router.core.bodies.legs import read_token_ids
from transload_router.core.bodies.members import (
    NotAnObject,
    Raw,
    is_unset,
    read_members,
    read_object,
)
from transload_router.core.usage import (
    carried_tokens,
    detailed_tokens,
    prompt_tokens,
    read_cached_tokens,
    written_tokens,
)
from transload_router.errors import EngineBadAnswer

log = logging.getLogger("transload")


@dataclass(frozen=True, slots=True)
class Prefilled:
    """Of a prefill leg's answer.

    Attributes:
        handoff: Raw transfer parameters, None where there are none.
        num_cached_tokens: Of the prompt, None where it does not say.
        num_to_tell: What decode's usage has to say instead of its own figure; None where the
            handoff carries it.
        num_prompt_tokens: As its usage counts them, None where it does not.
        token_ids: The prompt's, as a JSON array, where they were asked for.
    """

    handoff: bytes | None
    num_cached_tokens: int | None
    num_to_tell: int | None
    num_prompt_tokens: int | None
    token_ids: bytes | None


def read_prefilled(endpoint: Endpoint, body: bytes, engine_id: str) -> Prefilled:
    """Read prefill's answer.

    Raises:
        EngineBadAnswer: It is no JSON object.
    """
    try:
        answer = read_members(body)
    except NotAnObject as error:
        raise EngineBadAnswer(engine_id, f"prefill's answer: {error}") from None
    raw = answer.get(HANDOFF_MEMBER)
    handoff = bytes(raw) if raw is not None and read_object(raw) else None
    if handoff is None and not is_unset(raw):
        log.warning("prefill's %s is no handoff: %.100r", HANDOFF_MEMBER, bytes(raw or b""))
    carried = carried_tokens(handoff)
    return Prefilled(
        handoff,
        num_cached_tokens=detailed_tokens(answer) if carried is None else carried,
        num_to_tell=read_cached_tokens(answer) if carried is None else None,
        num_prompt_tokens=prompt_tokens(answer),
        token_ids=read_token_ids(endpoint, answer),
    )


@dataclass(frozen=True, slots=True)
class Usage:
    """Of a whole answer; None where it does not say."""

    num_cached_tokens: int | None = None
    num_prompt_tokens: int | None = None
    num_answer_tokens: int | None = None


def read_usage(body: bytes) -> Usage:
    """Read what a whole answer says of its tokens."""
    if b'"usage"' not in body:
        return Usage()
    answer = read_object(Raw(body)) or {}
    return Usage(detailed_tokens(answer), prompt_tokens(answer), written_tokens(answer))
