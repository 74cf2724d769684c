"""What vLLM 0.32 takes and answers on the five endpoints, as far as a router can see it.

Plain values only: requests, whole answers, server-sent events, and the rules by which an engine
refuses a body. Written from the engine's own behaviour, not from the router's tables, so that
both have to agree.
"""

import copy
import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

MODEL = "tiny-model"
PROMPT_TOKENS = 7
WORDS = ("Höhe ", "über ", "漢字 ", "🚚")  # two, three and four bytes a character
CREATED = 1764547200

Body = dict[str, Any]
_ids = itertools.count(1)


@dataclass(frozen=True, slots=True)
class Reply:
    """One generation: its whole answer and its stream."""

    whole: bytes
    events: tuple[bytes, ...]


@dataclass(frozen=True, slots=True)
class Generation:
    """What an engine made of a request.

    Attributes:
        model: As the request named it.
        finish: vLLM's word for the end.
        num_tokens: Length of the answer.
        num_choices: `n`.
        cached_tokens: For usage blocks that have details.
        handoff: Raw JSON of `kv_transfer_params`, None for null.
        include_usage: Whether a chat or completions stream ends with a usage event.
    """

    model: str
    finish: str = "stop"
    num_tokens: int = len(WORDS)
    num_choices: int = 1
    cached_tokens: int = 0
    handoff: bytes | None = None
    include_usage: bool = False

    @property
    def words(self) -> tuple[str, ...]:
        """The answer's tokens as text."""
        return tuple(itertools.islice(itertools.cycle(WORDS), self.num_tokens))

    @property
    def text(self) -> str:
        """The answer."""
        return "".join(self.words)


@dataclass(frozen=True, slots=True)
class Api:
    """One endpoint as a client sees it.

    Attributes:
        name: As in the router's metrics.
        path: Exact path.
        minimal: Members of the smallest request besides the model.
        length: Where the answer's length is limited.
        reply: Makes an answer.
        done: Bytes that a stream ends with only when it is whole.
    """

    name: str
    path: str
    minimal: Mapping[str, Any]
    length: str
    reply: Callable[[Generation], Reply]
    done: bytes

    def request(self, *, stream: bool = False, length: int | None = None, **more: Any) -> Body:
        """A valid request body.

        Args:
            stream: Left out where false.
            length: Tokens to stop at, by this API's own member.
            **more: Further members.
        """
        body: Body = {"model": MODEL, **copy.deepcopy(dict(self.minimal))}
        if length is not None:
            sampling_of(self, body)[self.length] = length
        if stream:
            body["stream"] = True
        return body | more

    def error(self, status: int, message: str) -> bytes:
        """The engine's own error body."""
        if self is MESSAGES:
            return dump(
                {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
            )
        return dump(
            {
                "error": {
                    "message": message,
                    "type": "BadRequestError",
                    "param": None,
                    "code": status,
                }
            }
        )


def dump(value: Any) -> bytes:
    """JSON as vLLM's server writes it: compact, not escaped."""
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


def event(value: Any, name: str = "") -> bytes:
    """One server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + dump(value) + b"\n\n"


DONE = b"data: [DONE]\n\n"
_HANDOFF_MARK = "\x00handoff\x00"


def with_handoff(answer: Body, handoff: bytes | None) -> bytes:
    """An answer with the handoff's bytes exactly as given."""
    text = dump({**answer, "kv_transfer_params": _HANDOFF_MARK})
    return text.replace(json.dumps(_HANDOFF_MARK).encode(), handoff or b"null")


def _usage(g: Generation) -> Body:
    return {
        "prompt_tokens": PROMPT_TOKENS,
        "total_tokens": PROMPT_TOKENS + g.num_tokens * g.num_choices,
        "completion_tokens": g.num_tokens * g.num_choices,
        "prompt_tokens_details": {"cached_tokens": g.cached_tokens},
    }


def _chat(g: Generation) -> Reply:
    head = {"id": f"chatcmpl-{next(_ids)}", "created": CREATED, "model": g.model}
    message = {"role": "assistant", "content": g.text, "tool_calls": []}
    choices = [
        {"index": i, "message": message, "logprobs": None, "finish_reason": g.finish}
        for i in range(g.num_choices)
    ]
    whole = {**head, "object": "chat.completion", "choices": choices, "usage": _usage(g)}

    def chunk(delta: Body, finish: str | None = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": None, "finish_reason": finish}
        return event({**head, "object": "chat.completion.chunk", "choices": [choice]})

    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": word}) for word in g.words]
    events.append(chunk({"content": ""}, g.finish))
    if g.include_usage:
        events.append(
            event({**head, "object": "chat.completion.chunk", "choices": [], "usage": _usage(g)})
        )
    return Reply(with_handoff(whole, g.handoff), (*events, DONE))


def _completions(g: Generation) -> Reply:
    head = {"id": f"cmpl-{next(_ids)}", "object": "text_completion", "created": CREATED}
    head["model"] = g.model

    def choice(text: str, index: int = 0, finish: str | None = None) -> Body:
        return {"index": index, "text": text, "logprobs": None, "finish_reason": finish}

    choices = [choice(g.text, i, g.finish) for i in range(g.num_choices)]
    whole = {**head, "choices": choices, "usage": _usage(g)}
    events = [event({**head, "choices": [choice(word)]}) for word in g.words]
    events.append(event({**head, "choices": [choice("", finish=g.finish)]}))
    if g.include_usage:
        events.append(event({**head, "choices": [], "usage": _usage(g)}))
    return Reply(with_handoff(whole, g.handoff), (*events, DONE))


def _responses(g: Generation) -> Reply:
    rid, mid = f"resp_{next(_ids)}", f"msg_{next(_ids)}"
    text: Body = {"type": "output_text", "text": g.text, "annotations": [], "logprobs": None}
    item = {
        "id": mid,
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": [text],
    }
    base = {
        "id": rid,
        "object": "response",
        "created_at": CREATED,
        "model": g.model,
        "parallel_tool_calls": True,
        "tool_choice": "auto",
        "tools": [],
        "error": None,
        "incomplete_details": None,
        "metadata": None,
        "instructions": None,
    }
    usage = {
        "input_tokens": PROMPT_TOKENS,
        "input_tokens_details": {"cached_tokens": g.cached_tokens},
        "output_tokens": g.num_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": PROMPT_TOKENS + g.num_tokens,
    }
    status = "incomplete" if g.finish == "length" else "completed"
    whole = {**base, "status": status, "output": [item], "usage": usage}
    numbers = itertools.count()

    def step(name: str, **fields: Any) -> bytes:
        return event({"type": name, "sequence_number": next(numbers), **fields}, name)

    where = {"item_id": mid, "output_index": 0, "content_index": 0}
    started = {**base, "status": "in_progress", "output": [], "usage": None}
    empty = {**text, "text": ""}
    events = [
        step("response.created", response=started),
        step("response.in_progress", response=started),
        step(
            "response.output_item.added",
            output_index=0,
            item={**item, "status": "in_progress", "content": []},
        ),
        step("response.content_part.added", **where, part=empty),
    ]
    for word in g.words:
        events.append(step("response.output_text.delta", **where, delta=word, logprobs=[]))
    events += [
        step("response.output_text.done", **where, text=g.text, logprobs=[]),
        step("response.content_part.done", **where, part=text),
        step("response.output_item.done", output_index=0, item=item),
        step("response.completed", response=whole),
    ]
    return Reply(with_handoff(whole, g.handoff), tuple(events))


def _messages(g: Generation) -> Reply:
    base = {"id": f"msg_{next(_ids)}", "type": "message", "role": "assistant", "model": g.model}
    stop = "max_tokens" if g.finish == "length" else "end_turn"
    usage = {
        "input_tokens": PROMPT_TOKENS - g.cached_tokens,
        "output_tokens": g.num_tokens,
        "cache_creation_input_tokens": 0,
        "cache_read_input_tokens": g.cached_tokens,
    }
    content = [{"type": "text", "text": g.text}]
    whole = {
        **base,
        "content": content,
        "stop_reason": stop,
        "stop_sequence": None,
        "usage": usage,
    }

    def step(name: str, **fields: Any) -> bytes:
        return event({"type": name, **fields}, name)

    started: Body = {**base, "content": [], "stop_reason": None, "stop_sequence": None}
    events = [
        step("message_start", message={**started, "usage": {**usage, "output_tokens": 0}}),
        step("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    ]
    for word in g.words:
        delta = {"type": "text_delta", "text": word}
        events.append(step("content_block_delta", index=0, delta=delta))
    events += [
        step("content_block_stop", index=0),
        step("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage=usage),
        step("message_stop"),
    ]
    return Reply(with_handoff(whole, g.handoff), tuple(events))


def _generate(g: Generation) -> Reply:
    rid = f"generate-{next(_ids)}"
    tokens = list(range(1000, 1000 + g.num_tokens))

    def choice(ids: list[int], index: int = 0, finish: str | None = None) -> Body:
        return {"index": index, "token_ids": ids, "logprobs": None, "finish_reason": finish}

    choices = [choice(tokens, i, g.finish) for i in range(g.num_choices)]
    whole = {"request_id": rid, "choices": choices, "prompt_logprobs": None}
    events = [event({"request_id": rid, "choices": [choice([token])]}) for token in tokens]
    events.append(event({"request_id": rid, "choices": [choice([], finish=g.finish)]}))
    return Reply(with_handoff(whole, g.handoff), (*events, DONE))


_TURNS = [{"role": "user", "content": "Say where the cargo goes."}]
CHAT = Api(
    "chat", "/v1/chat/completions", {"messages": _TURNS}, "max_completion_tokens", _chat, DONE
)
COMPLETIONS = Api(
    "completions", "/v1/completions", {"prompt": "The cargo"}, "max_tokens", _completions, DONE
)
RESPONSES = Api(
    "responses",
    "/v1/responses",
    {"input": "Say where the cargo goes."},
    "max_output_tokens",
    _responses,
    b"response.completed",
)
MESSAGES = Api(
    "messages",
    "/v1/messages",
    {"messages": _TURNS, "max_tokens": 16},
    "max_tokens",
    _messages,
    b"message_stop",
)
GENERATE = Api(
    "generate",
    "/inference/v1/generate",
    {"token_ids": [1, 2, 3, 4, 5, 6, 7], "sampling_params": {"max_tokens": 4}},
    "max_tokens",
    _generate,
    DONE,
)
APIS = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, GENERATE)
BY_PATH = {api.path: api for api in APIS}


def sampling_of(api: Api, body: Body) -> Body:
    """The object in which a request's sampling fields stand."""
    if api is GENERATE:
        nested = body.get("sampling_params")
        return nested if isinstance(nested, dict) else {}
    return body


def asked_length(api: Api, body: Body) -> int | None:
    """Tokens that an engine would stop at, None where the body does not say."""
    fields = sampling_of(api, body)
    names = ("max_completion_tokens", "max_tokens") if api is CHAT else (api.length,)
    return next((fields[name] for name in names if fields.get(name) is not None), None)


def refusal(api: Api, body: Body) -> str | None:
    """Why vLLM would answer 400, or None where it takes the body."""
    if not isinstance(body.get("model"), str) and api is not GENERATE:
        return "model: Field required"
    for name in api.minimal:
        if body.get(name) is None:
            return f"{name}: Field required"
    fields = sampling_of(api, body)
    length = asked_length(api, body)
    if api is not MESSAGES and body.get("stream_options") is not None and not body.get("stream"):
        return "Stream options can only be defined when `stream=True`."
    if length is not None and (not isinstance(length, int) or length < 0):
        return f"max_tokens must be at least 1, got {length}."
    if length == 0 and api is not COMPLETIONS:
        return "max_tokens must be at least 1, got 0."
    least = fields.get("min_tokens") or 0
    if length is not None and least > length:
        return f"min_tokens must be less than or equal to max_tokens={length}, got {least}."
    if api is CHAT and (body.get("top_logprobs") or 0) > 0 and not body.get("logprobs"):
        return "when using `top_logprobs`, `logprobs` must be set to true."
    if fields.get("use_beam_search") and body.get("stream"):
        return "Streaming is not currently supported with beam search."
    if fields.get("prompt_logprobs") is not None and body.get("stream"):
        return "`prompt_logprobs` are not available when `stream=True`."
    if api is RESPONSES and body.get("background") and body.get("store") is False:
        return "background can only be used when `store` is true"
    return _thinking_refusal(api, body, length)


def _thinking_refusal(api: Api, body: Body, length: int | None) -> str | None:
    thinking = body.get("thinking")
    params = body.get("kv_transfer_params") or {}
    if api is not MESSAGES or not isinstance(thinking, dict) or params.get("do_remote_decode"):
        return None
    if (thinking.get("budget_tokens") or 0) >= (length or 0):
        return "thinking.budget_tokens must be less than max_tokens"
    return None
