"""The endpoints that two engines share, as one table: what prefill gets, what decode gets.

**Rules**

1. The prefill leg ends after one token, by length where the API lets us say so, and is never
   streamed: only a whole answer carries the handoff. Every length key is 1; what would end the
   leg otherwise, or asks for results that the leg cannot give, is taken out. Whatever changes
   the *prompt* (tools, templates, response formats, truncation, media) stays as it is.
2. The decode leg is the client's own bytes plus exactly the handoff.
3. Clients never set the transfer parameters, neither at the top nor through the side doors
   that engines copy into `SamplingParams.extra_args`.
4. A request whose results only one engine can know, or that reads its prompt more than once,
   is not split. The reason is a metric label.

Field names are those of vLLM 0.32.0, `entrypoints/**/protocol.py` and `sampling_params.py`.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from transload_router.core.bodies.members import (
    Members,
    Raw,
    is_unset,
    read_int,
    read_items,
    read_nested,
    read_str,
    write_members,
)
from transload_router.core.types import Dialect

HANDOFF_MEMBER = "kv_transfer_params"
# What engines exchange among themselves; never accepted from a client. The second is the
# encoder leg's. The third makes an engine announce cached blocks as stored once more, a copy that
# does not exist and that the index would count for good (vLLM 0.32.0, measured).
TRANSFER_MEMBERS = (HANDOFF_MEMBER, "ec_transfer_params", "kv_cache_report_mode")

_TRUE = Raw(b"true")
_FALSE = Raw(b"false")
_ONE = Raw(b"1")
# NIXL's question to prefill, as vLLM's own proxy examples put it.
ASK_HANDOFF = Raw(
    b'{"do_remote_decode":true,"do_remote_prefill":false,"remote_engine_id":null,'
    b'"remote_block_ids":null,"remote_host":null,"remote_port":null}'
)

# Results, limits and stops of sampling: nothing here changes the prompt.
_SAMPLING_DROPS = frozenset(
    {
        "best_of",
        "logprob_token_ids",
        "logprobs",
        "min_tokens",
        "prompt_logprobs",
        "return_token_ids",
        "stop",
        "stop_token_ids",
        "stream_interval",
        "stream_options",
        "top_logprobs",
        "trace_decode_token_ids",
        "use_beam_search",
    }
)

LocalRule = Callable[[Members], str | None]

_LIST_OF_PROMPTS = re.compile(rb"\[\s*[\[\"]")


@dataclass(frozen=True, slots=True)
class Endpoint:
    """One row: an endpoint that can be disaggregated.

    Attributes:
        name: Metric label.
        path: Exact path.
        dialect: Shape of errors.
        always: Members that the prefill leg carries whatever the client said.
        if_present: Members that are replaced where the client set them.
        drops: Members that the prefill leg loses.
        sampling: Name of the nested object that `always`, `if_present` and `drops` speak of;
            "" where sampling fields stand at the top.
        side_doors: Nested objects that engines copy into `extra_args`, as paths.
        local_rules: First reason, if any, why one engine serves the whole request.
        length_members: Where a client limits its answer, for load estimates.
        ids_go: How an engine is given the prompt as token ids instead of its text: within the
            transfer parameters, as the prompt itself, or not at all. (vLLM 0.32.0; older engines
            ignore the first.)
        takes_rank: Whether engines let the caller choose the data-parallel rank (vLLM 0.32.0).
        prompt_members: Members whose raw text the prompt is made of, in the order in which a
            conversation grows.
    """

    name: str
    path: str
    dialect: Dialect
    always: Mapping[str, Raw]
    if_present: Mapping[str, Raw] = field(default_factory=dict)
    drops: frozenset[str] = frozenset()
    sampling: str = ""
    side_doors: tuple[tuple[str, ...], ...] = ()
    local_rules: tuple[LocalRule, ...] = ()
    length_members: tuple[str, ...] = ("max_tokens",)
    ids_go: Literal["in_transfer", "as_prompt", "nowhere"] = "nowhere"
    takes_rank: bool = True
    prompt_members: tuple[str, ...] = ("tools", "system", "messages")


def _asks_for(*names: str) -> LocalRule:
    """A rule for members whose mere use needs one engine."""

    def rule(members: Members) -> str | None:
        for name in names:
            if not is_unset(members.get(name)):
                return name
        return None

    return rule


def _several_choices(members: Members) -> str | None:
    for name in ("n", "best_of"):
        raw = members.get(name)
        if not is_unset(raw) and read_int(raw) != 1:
            return "several_choices"
    return None


def _several_prompts(members: Members) -> str | None:
    """One handoff, one prompt; token ids are a flat array of numbers."""
    prompt = members.get("prompt")
    if prompt is None or not _LIST_OF_PROMPTS.match(prompt):
        return None
    items = read_items(prompt)
    return None if items is not None and len(items) == 1 else "several_prompts"


def _truncated_to_fit(members: Members) -> str | None:
    """Cutting the prompt to what the context leaves reads the length keys, and the legs' differ.

    In vLLM 0.32.0 the cut (`renderers/params.py:max_truncation_tokens`) depends on whether a
    length is given at all, before that on its value. A cut to a number of tokens is the same
    on both legs.
    """
    length = members.get("truncate_prompt_tokens")
    kept = read_int(length)
    if not is_unset(length) and (kept is None or kept < 0):
        return "truncation"
    mode = members.get("truncation")
    return None if is_unset(mode) or read_str(mode) == "disabled" else "truncation"


def _no_tokens_asked(members: Members) -> str | None:
    return "no_output" if read_int(members.get("max_tokens")) == 0 else None


def _server_tools(own_types: frozenset[str]) -> LocalRule:
    """Tools that the engine itself runs loop over its own cache, and would reuse the handoff."""

    def rule(members: Members) -> str | None:
        tools = members.get("tools")
        if is_unset(tools) or tools is None:
            return None
        items = read_items(tools)
        if items is None:
            return "server_tools"
        for tool in items:
            fields = read_nested(tool) or {}
            if "type" in fields and read_str(fields["type"]) not in own_types:
                return "server_tools"
        return None

    return rule


def _within(name: str, *rules: LocalRule) -> LocalRule:
    """Rules over the members of a nested object."""

    def rule(members: Members) -> str | None:
        nested = read_nested(members.get(name)) or {}
        return next((reason for one in rules if (reason := one(nested))), None)

    return rule


_PROMPT_RESULTS = _asks_for(
    "echo", "prompt_logprobs", "prompt_logprob_token_ids", "prompt_logprob_start"
)

CHAT = Endpoint(
    name="chat",
    path="/v1/chat/completions",
    dialect=Dialect.OPENAI,
    always={"max_tokens": _ONE, "max_completion_tokens": _ONE, "ignore_eos": _TRUE},
    if_present={"stream": _FALSE, "n": _ONE},
    drops=_SAMPLING_DROPS | {"return_token_offsets"},
    side_doors=(("vllm_xargs",),),
    local_rules=(
        _several_choices,
        _PROMPT_RESULTS,
        _asks_for("use_beam_search"),
        _truncated_to_fit,
    ),
    length_members=("max_completion_tokens", "max_tokens"),
    ids_go="in_transfer",
)
COMPLETIONS = Endpoint(
    name="completions",
    path="/v1/completions",
    dialect=Dialect.OPENAI,
    always={"max_tokens": _ONE, "ignore_eos": _TRUE},
    if_present={"stream": _FALSE, "n": _ONE},
    drops=_SAMPLING_DROPS | {"return_token_offsets", "echo"},
    side_doors=(("vllm_xargs",),),
    local_rules=(
        _several_prompts,
        _several_choices,
        _PROMPT_RESULTS,
        _asks_for("use_beam_search", "prompt_embeds"),
        _no_tokens_asked,
        _truncated_to_fit,
    ),
    ids_go="as_prompt",
    prompt_members=("prompt",),
)
RESPONSES = Endpoint(
    name="responses",
    path="/v1/responses",
    dialect=Dialect.RESPONSES,
    always={"max_output_tokens": _ONE, "store": _FALSE, "ignore_eos": _TRUE},
    if_present={"stream": _FALSE, "background": _FALSE},
    drops=_SAMPLING_DROPS | {"include"},
    side_doors=(("vllm_xargs",),),
    local_rules=(
        _asks_for("previous_response_id", "background"),
        _server_tools(frozenset({"function", "custom"})),
        _truncated_to_fit,
    ),
    length_members=("max_output_tokens",),
    takes_rank=False,
    prompt_members=("tools", "instructions", "input"),
)
MESSAGES = Endpoint(
    name="messages",
    path="/v1/messages",
    dialect=Dialect.ANTHROPIC,
    # No ignore_eos in this API: the leg may end by a stop, and NIXL hands off then, too.
    always={"max_tokens": _ONE},
    if_present={"stream": _FALSE},
    drops=frozenset({"stop_sequences"}),
    side_doors=(("vllm_xargs",),),
    local_rules=(_server_tools(frozenset({"custom", "function"})),),
)
GENERATE = Endpoint(
    name="generate",
    path="/inference/v1/generate",
    dialect=Dialect.OPENAI,
    always={"max_tokens": _ONE, "ignore_eos": _TRUE},
    if_present={"stream": _FALSE, "n": _ONE},
    drops=_SAMPLING_DROPS,
    sampling="sampling_params",
    side_doors=(("sampling_params", "extra_args"),),
    local_rules=(
        _within(
            "sampling_params",
            _several_choices,
            _PROMPT_RESULTS,
            # Decode would read the prompt itself and leave the handoff alone.
            _asks_for("skip_reading_prefix_cache"),
        ),
    ),
    prompt_members=("token_ids",),
)

ENDPOINTS: Mapping[str, Endpoint] = {
    row.path: row for row in (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)
}


def local_reason(endpoint: Endpoint, members: Members) -> str | None:
    """Why one engine must serve the whole request, or None where two may share it."""
    return next((reason for rule in endpoint.local_rules if (reason := rule(members))), None)


# Paths outside the table may lead to any of its endpoints (`/invocations`).
_ALL_DOORS = tuple(dict.fromkeys(door for row in ENDPOINTS.values() for door in row.side_doors))


def strip_transfer(endpoint: Endpoint | None, members: Members) -> Members | None:
    """What a client may not set, taken out.

    Returns:
        The remaining members, or None where there was nothing to take out (the common case,
        in which the client's bytes stay as they are).
    """
    doors = endpoint.side_doors if endpoint else _ALL_DOORS
    cleaned = _without(members, TRANSFER_MEMBERS)
    for door in doors:
        current = members if cleaned is None else cleaned
        replaced = _strip_door(current, door)
        cleaned = cleaned if replaced is None else replaced
    return cleaned


def _without(members: Members, names: tuple[str, ...]) -> Members | None:
    if members.keys().isdisjoint(names):
        return None
    return {name: raw for name, raw in members.items() if name not in names}


def _strip_door(members: Members, door: tuple[str, ...]) -> Members | None:
    """Take the transfer members out of the object at the end of a path."""
    raw = members.get(door[0])
    nested = read_nested(raw)
    if nested is None:
        return None
    rest = door[1:]
    replaced = _strip_door(nested, rest) if rest else _without(nested, TRANSFER_MEMBERS)
    if replaced is None:
        return None
    return {**members, door[0]: Raw(write_members(replaced))}


def estimate_tokens(endpoint: Endpoint, members: Members, body_bytes: int) -> tuple[int, int]:
    """A rough size of a request, for reservations only.

    Returns:
        (prompt tokens, answer tokens). Four bytes of text stand for a token, and an answer
        without a limit for `_UNLIMITED_ANSWER_TOKENS`.
    """
    fields = read_nested(members.get(endpoint.sampling)) or {} if endpoint.sampling else members
    for name in endpoint.length_members:
        limit = read_int(fields.get(name))
        if limit is not None and limit > 0:
            break
    else:
        limit = _UNLIMITED_ANSWER_TOKENS
    return max(1, body_bytes // 4), min(limit, _MAX_RESERVED_ANSWER_TOKENS)


# A client's `max_tokens` is a bound, not a forecast; these keep one request from weighing like
# a hundred. Not tuned: a learned answer length replaces them with the cost model.
_UNLIMITED_ANSWER_TOKENS = 256
_MAX_RESERVED_ANSWER_TOKENS = 1024
