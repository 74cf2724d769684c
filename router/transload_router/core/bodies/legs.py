"""The bodies of the legs: what prefill gets, what decode gets, what releases a handoff."""

from transload_router.core.bodies.endpoints import (
    ASK_HANDOFF,
    COMPLETIONS,
    HANDOFF_MEMBER,
    Endpoint,
)
from transload_router.core.bodies.members import (
    Members,
    Raw,
    append_member,
    encode_value,
    is_unset,
    read_items,
    read_nested,
    read_object,
    write_members,
)

_TRUE = Raw(b"true")
_ONE = Raw(b"1")


def prefill_body(
    endpoint: Endpoint,
    members: Members,
    token_ids: bytes | None = None,
    *,
    wants_token_ids: bool = False,
) -> bytes:
    """The prefill leg's body.

    Args:
        endpoint: The row.
        members: The client's members after `strip_transfer`; not changed.
        token_ids: The prompt's ids as a JSON array, to be read instead of its text; only where
            `ids_go` says how.
        wants_token_ids: Whether the answer is to tell the prompt's ids (`read_token_ids`).
    """
    leg = dict(members)
    leg[HANDOFF_MEMBER] = ASK_HANDOFF
    if token_ids is not None:
        _give_ids(endpoint, leg, token_ids)
    if endpoint.sampling:
        nested = read_nested(members.get(endpoint.sampling)) or {}
        leg[endpoint.sampling] = Raw(write_members(_one_token(endpoint, nested)))
    leg = _one_token(endpoint, leg, is_top_of_nested=bool(endpoint.sampling))
    if wants_token_ids:
        leg["return_token_ids"] = _TRUE
    return write_members(leg)


def _give_ids(endpoint: Endpoint, leg: Members, token_ids: bytes) -> None:
    if endpoint.ids_go == "as_prompt":
        leg["prompt"] = Raw(token_ids)
    elif endpoint.ids_go == "in_transfer":
        leg[HANDOFF_MEMBER] = Raw(_with_ids(leg.get(HANDOFF_MEMBER), token_ids))


def _with_ids(handoff: bytes | Raw | None, token_ids: bytes) -> bytes:
    return append_member(bytes(handoff or b"{}"), "prompt_token_ids", token_ids)


def read_token_ids(endpoint: Endpoint, answer: Members) -> bytes | None:
    """The prompt's ids that a prefill answer tells, as a JSON array; None where it does not."""
    if endpoint.ids_go == "as_prompt":
        choices = read_items(answer.get("choices", Raw(b"[]"))) or []
        answer = (read_object(choices[0]) or {}) if choices else {}
    raw = answer.get("prompt_token_ids")
    return None if is_unset(raw) else bytes(raw or b"")


def _one_token(endpoint: Endpoint, fields: Members, *, is_top_of_nested: bool = False) -> Members:
    """Apply the row to the object that holds the sampling fields."""
    leg = {name: raw for name, raw in fields.items() if name not in endpoint.drops}
    for name, raw in endpoint.if_present.items():
        if name in leg:
            leg[name] = raw
    if not is_top_of_nested:
        leg.update(endpoint.always)
    return leg


def decode_body(
    endpoint: Endpoint,
    body: bytes,
    members: Members,
    handoff: bytes | None,
    token_ids: bytes | None = None,
) -> bytes:
    """The decode leg's body: the client's bytes, and the handoff where there is one.

    Args:
        endpoint: The row.
        body: The client's bytes after `strip_transfer`.
        members: The same, read; not changed.
        handoff: Raw transfer parameters.
        token_ids: As for `prefill_body`.
    """
    if token_ids is not None and endpoint.ids_go == "as_prompt":
        body = write_members({**members, "prompt": Raw(token_ids)})
    elif token_ids is not None and endpoint.ids_go == "in_transfer":
        handoff = _with_ids(handoff, token_ids)
    return body if handoff is None else append_member(body, HANDOFF_MEMBER, handoff)


RELEASE_PATH = COMPLETIONS.path


def release_body(model: str, handoff: bytes) -> bytes:
    """A completions request that a decode engine rejects before rendering, releasing `handoff`.

    Beam search does not stream, so vLLM answers 400, and its rejection path tells prefill to
    free the blocks (measured on 0.32.0; the wrapper is in 0.28, too).
    """
    return write_members(
        {
            "model": encode_value(model),
            "prompt": Raw(b"[0]"),
            "max_tokens": _ONE,
            "stream": _TRUE,
            "use_beam_search": _TRUE,
            HANDOFF_MEMBER: Raw(handoff),
        }
    )
