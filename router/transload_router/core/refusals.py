"""Whether a decode engine that refused a request has told prefill to free its blocks.

Measured on vLLM 0.32.0 with NIXL, one request shape at a time, by prefill's KV usage afterwards:
an engine releases the handoff of a request that it rejects while preparing it (context length,
parameter ranges, unknown models), and leaves it alone where the request never gets that far:
bodies that fail validation, and everything on the generate endpoint. To release what was
released already is harmless to blocks but counts as a read after expiry, which is the alarm for
wrong tokens, so the two must be told apart.
"""

from transload_router.core.bodies.endpoints import GENERATE, Endpoint
from transload_router.core.bodies.members import (
    Members,
    NotAnObject,
    is_unset,
    read_members,
    read_object,
    read_str,
)

# How vLLM names a body that its models refuse; with "BadRequestError" it looked at the content.
_VALIDATION_TYPE = "Bad Request"
# Members that the models check in relation to others, and report as "BadRequestError" all the
# same: usage options without a stream, a tool choice without tools.
_RELATED_MEMBERS = frozenset({"stream_options", "tool_choice"})


def left_handoff_alone(endpoint: Endpoint, sent: Members, status: int, answer: bytes) -> bool:
    """Whether the handoff that went with a refused request is still unconsumed.

    Args:
        endpoint: The row.
        sent: The request's members.
        status: The answer's status.
        answer: The answer's body.
    """
    if not 400 <= status < 500:
        return False
    if endpoint is GENERATE:
        return True
    try:
        error = read_object(read_members(answer).get("error")) or {}
    except NotAnObject:
        return False
    if read_str(error.get("type")) == _VALIDATION_TYPE:
        return True
    param = read_str(error.get("param"))
    if param == "top_logprobs":
        return is_unset(sent.get("logprobs"))
    return param in _RELATED_MEMBERS
