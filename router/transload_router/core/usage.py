"""Cached-token counts: decode's answer says what prefill found in its cache.

A decode engine counts every token that it loaded as cached, which would bill a cold prompt as
warm. vLLM 0.32 carries prefill's figure in the handoff (`remote_prefill_cached_tokens`) and
reports it itself; then nothing is touched. For engines that do not, prefill's own figure is put
into each usage block that has one. A block that is absent stays absent.

Blocks by API: `usage.prompt_tokens_details.cached_tokens` (chat, completions, generate),
`[response.]usage.input_tokens_details.cached_tokens` (responses),
`[message.]usage.cache_read_input_tokens` with `input_tokens` less by as much (messages).
"""

import re

from transload_router.core.bodies.members import (
    Members,
    Raw,
    encode_value,
    is_unset,
    read_int,
    read_object,
    write_members,
)
from transload_router.core.sse import event_data

_DATA_LINE = re.compile(rb"(?:^|[\r\n])data:")
_CARRIED = "remote_prefill_cached_tokens"
_DETAILS = ("prompt_tokens_details", "input_tokens_details")
_ENVELOPES = ("response", "message")


def carried_tokens(handoff: bytes | None) -> int | None:
    """What the handoff itself tells decode that prefill had cached; None where it does not."""
    if handoff is None or _CARRIED.encode() not in handoff:
        return None
    members = read_object(Raw(handoff)) or {}
    return read_int(members.get(_CARRIED))


def detailed_tokens(answer: Members) -> int | None:
    """Cached tokens that an answer's usage gives in so many words; None where it does not."""
    usage = read_object(answer.get("usage"))
    if usage is None:
        return None
    for name in _DETAILS:
        details = read_object(usage.get(name))
        if details is not None:
            return read_int(details.get("cached_tokens"))
    return read_int(usage.get("cache_read_input_tokens"))


def written_tokens(answer: Members) -> int | None:
    """Tokens of the answer as its usage counts them."""
    usage = read_object(answer.get("usage")) or {}
    return read_int(usage.get("completion_tokens", usage.get("output_tokens")))


def prompt_tokens(answer: Members) -> int | None:
    """Tokens of the whole prompt as an answer's usage counts them; None where it does not."""
    usage = read_object(answer.get("usage")) or {}
    if "prompt_tokens" in usage:
        return read_int(usage["prompt_tokens"])
    # The Messages API counts only what was neither read from a cache nor written to one.
    parts = ("input_tokens", "cache_read_input_tokens", "cache_creation_input_tokens")
    counts = [read_int(usage.get(name)) for name in parts]
    return None if counts[0] is None else sum(count or 0 for count in counts)


def streamed_tokens(event: bytes) -> int | None:
    """Cached tokens that one server-sent event gives in so many words; None where it does not.

    What a Messages stream says when it begins is not counted: the prompt is not read yet.
    """
    if b"cached_tokens" not in event and b"cache_read_input_tokens" not in event:
        return None
    members = read_object(Raw(event_data(event))) or {}
    return detailed_tokens(read_object(members.get("response")) or members)


def read_cached_tokens(answer: Members) -> int | None:
    """Cached tokens as prefill's answer reports them, None where it has no usage at all.

    A usage block without details says 0: engines before 0.32 leave the details out then.
    """
    usage = read_object(answer.get("usage"))
    if usage is None:
        return None
    for name in _DETAILS:
        details = read_object(usage.get(name))
        if details is not None and "cached_tokens" in details:
            return read_int(details["cached_tokens"]) or 0
    return read_int(usage.get("cache_read_input_tokens")) or 0


def patch_answer(body: bytes, num_cached_tokens: int) -> bytes:
    """A whole answer or one event's JSON, its cached tokens replaced where it has them."""
    if b"cached_tokens" not in body and b"cache_read_input_tokens" not in body:
        return body
    members = read_object(Raw(body))
    if members is None:
        return body
    patched = _patch_usage_of(members, num_cached_tokens)
    for envelope in _ENVELOPES if patched is None else ():
        inner = read_object(members.get(envelope))
        changed = _patch_usage_of(inner, num_cached_tokens) if inner is not None else None
        if changed is not None:
            patched = {**members, envelope: Raw(write_members(changed))}
            break
    return body if patched is None else write_members(patched)


def patch_event(event: bytes, num_cached_tokens: int) -> bytes:
    """One server-sent event, its cached tokens replaced where it has them."""
    if b"cached_tokens" not in event and b"cache_read_input_tokens" not in event:
        return event
    data = event_data(event)
    patched = patch_answer(data, num_cached_tokens)
    start = _DATA_LINE.search(event)
    if patched is data or start is None:
        return event
    # Data of several lines is not in the event in one piece, and no engine writes it.
    return event[: start.end()] + event[start.end() :].replace(data, patched, 1)


def _patch_usage_of(holder: Members, num_cached_tokens: int) -> Members | None:
    usage = read_object(holder.get("usage"))
    if usage is None:
        return None
    patched = _patch_details(usage, num_cached_tokens) or _patch_cache_read(
        usage, num_cached_tokens
    )
    return None if patched is None else {**holder, "usage": Raw(write_members(patched))}


def _patch_details(usage: Members, num_cached_tokens: int) -> Members | None:
    for name in _DETAILS:
        details = read_object(usage.get(name))
        if details is None or is_unset(details.get("cached_tokens")):
            continue
        prompt = read_int(usage.get("prompt_tokens", usage.get("input_tokens")))
        cached = num_cached_tokens if prompt is None else min(num_cached_tokens, prompt)
        cached = max(cached, 0)
        changed = {**details, "cached_tokens": encode_value(cached)}
        return {**usage, name: Raw(write_members(changed))}
    return None


def _patch_cache_read(usage: Members, num_cached_tokens: int) -> Members | None:
    """Messages: `input_tokens` counts what was not cached."""
    before = read_int(usage.get("cache_read_input_tokens"))
    fresh = read_int(usage.get("input_tokens"))
    if before is None or fresh is None:
        return None
    prompt = before + fresh
    cached = max(0, min(num_cached_tokens, prompt))
    return {
        **usage,
        "input_tokens": encode_value(prompt - cached),
        "cache_read_input_tokens": encode_value(cached),
    }
