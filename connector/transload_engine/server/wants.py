"""Bodies of generation requests: what is wanted, or vLLM 0.32.0's way of refusing it.

**Rules**

* Wording, types and parameters of refusals are those recorded of vLLM; where pydantic would list
  several errors, the first is reported.
* A refusal says whether the request was looked at before: only then does vLLM tell prefill that
  the request's handoff will not be read.
* What no simulation needs is accepted and ignored here: sampling, logprobs, formats. An engine with
  a model reads or refuses that itself.
"""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from transload_engine.core.request import GREEDY
from transload_engine.core.runner import Sampling
from transload_engine.server.tokens import Tokenizer

Body = dict[str, Any]
_decoder = msgspec.json.Decoder(dict[str, Any])


class Refusal(Exception):
    """An error answer.

    Attributes:
        is_unread: Whether the body was refused before anybody looked at its handoff.
    """

    def __init__(
        self,
        message: str,
        param: str | None = None,
        *,
        status: int = 400,
        kind: str = "BadRequestError",
        is_unread: bool = False,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.is_unread = is_unread
        self.body = {
            "error": {"message": message, "type": kind, "param": param, "code": status},
        }


def invalid(kind: str, param: str, message: str, given: object) -> Refusal:
    """What pydantic refuses, as vLLM's handler puts it."""
    if isinstance(given, dict | list):
        given = f"<{type(given).__name__} of {len(given)} items>"
    error = {"type": kind, "loc": param, "msg": message, "input": given}
    text = f"1 validation error:\n  {error}"
    return Refusal(text, param, kind="Bad Request", is_unread=True)


@dataclass(frozen=True)
class Want:
    """A generation request, understood.

    Attributes:
        prompts: Tokens of each prompt; one, unless several were given.
        names_ids: Whether logprobs name tokens by their ids (`return_tokens_as_token_ids`).
        handoff: The request's `kv_transfer_params`, empty where it has none.
        num_readers: Engines that will read the blocks of a prefill.
        sampling: How a model chooses tokens.
    """

    is_chat: bool
    model: str
    prompts: list[list[int]]
    max_tokens: int
    min_tokens: int
    num_choices: int
    streams: bool
    includes_usage: bool
    continues_usage: bool
    returns_ids: bool
    ignores_eos: bool
    stop: list[str]
    keeps_stop: bool
    stop_token_ids: frozenset[int]
    cache_salt: str | None
    names_ids: bool = False
    handoff: Body = field(default_factory=dict)
    num_readers: int = 1
    sampling: Sampling = GREEDY


@dataclass(frozen=True)
class Limits:
    """What one engine serves.

    Attributes:
        default_max_tokens: Of chats that do not say.
        vocab_size: Ids of prompts are below this.
    """

    model: str
    max_model_tokens: int
    default_max_tokens: int
    vocab_size: int


def read_body(raw: bytes) -> Body:
    """A body's members.

    Raises:
        Refusal: It is no JSON object.
    """
    try:
        return _decoder.decode(raw)
    except msgspec.ValidationError:
        given = msgspec.json.decode(raw)
        text = "Input should be a valid dictionary or object to extract fields from"
        raise invalid("model_attributes_type", "body", text, given) from None
    except msgspec.DecodeError as error:
        raise Refusal(
            f"1 validation error:\n  {{'type': 'json_invalid', 'loc': 'body.0', "
            f"'msg': 'JSON decode error', 'input': '<dict of 0 items>', "
            f"'ctx': {{'error': {str(error)!r}}}}}",
            "body.0",
            kind="Bad Request",
            is_unread=True,
        ) from None


def read_want(body: Body, tokenizer: Tokenizer, limits: Limits, *, is_chat: bool) -> Want:
    """What a body asks for.

    Raises:
        Refusal: Whatever vLLM would refuse.
    """
    _check_shape(body, is_chat=is_chat)
    model = body.get("model")
    if model is not None and model != limits.model:
        raise unknown_model(str(model), limits.model)
    if body.get("use_beam_search") and body.get("stream") and not is_chat:
        raise Refusal("Streaming is not currently supported with beam search")
    prompts = _chat(body, tokenizer) if is_chat else _prompts(body, tokenizer)
    for prompt in prompts:
        _check_prompt(prompt, limits)
    max_tokens = _max_tokens(body, max(map(len, prompts)), limits, is_chat=is_chat)
    options = body.get("stream_options") or {}
    stop = body.get("stop") or []
    params = body.get("kv_transfer_params")
    return Want(
        is_chat=is_chat,
        model=limits.model,
        prompts=prompts,
        max_tokens=max_tokens,
        min_tokens=body.get("min_tokens") or 0,
        num_choices=body.get("n") or 1,
        streams=bool(body.get("stream")),
        includes_usage=bool(options.get("include_usage")),
        continues_usage=bool(
            options.get("include_usage") and options.get("continuous_usage_stats")
        ),
        returns_ids=bool(body.get("return_token_ids")),
        ignores_eos=bool(body.get("ignore_eos")),
        stop=[stop] if isinstance(stop, str) else list(stop),
        keeps_stop=bool(body.get("include_stop_str_in_output")),
        stop_token_ids=frozenset(body.get("stop_token_ids") or ()),
        cache_salt=body.get("cache_salt"),
        names_ids=bool(body.get("return_tokens_as_token_ids")),
        handoff=params if isinstance(params, dict) else {},
    )


def unknown_model(asked: str, served: str) -> Refusal:
    """A model that this engine does not have."""
    text = f"The model `{asked}` does not exist. Valid aliases: {served}."
    return Refusal(text, "model", status=404, kind="NotFoundError")


_INTEGERS = ("max_tokens", "max_completion_tokens", "min_tokens", "n", "seed", "top_k")


def _check_shape(body: Body, *, is_chat: bool) -> None:
    """What vLLM's request models refuse."""
    if is_chat and "messages" not in body:
        raise invalid("missing", "body.messages", "Field required", body)
    if is_chat and not isinstance(body["messages"], list):
        text = "Input should be a valid list"
        raise invalid("list_type", "body.messages", text, body["messages"])
    for name in _INTEGERS:
        given = body.get(name)
        if isinstance(given, str):
            text = "Input should be a valid integer, unable to parse string as an integer"
            raise invalid("int_parsing", f"body.{name}", text, given)
        if given is not None and not isinstance(given, int):
            raise invalid("int_type", f"body.{name}", "Input should be a valid integer", given)
    salt = body.get("cache_salt")
    if salt is not None and not isinstance(salt, str):
        raise invalid("string_type", "body.cache_salt", "Input should be a valid string", salt)
    params = body.get("kv_transfer_params")
    if params is not None and not isinstance(params, dict):
        text = "Input should be a valid dictionary"
        raise invalid("dict_type", "body.kv_transfer_params", text, params)
    if body.get("stream_options") and not body.get("stream"):
        text = "Stream options can only be defined when `stream=True`."
        raise _related(text, "stream_options")
    if is_chat and body.get("top_logprobs") and not body.get("logprobs"):
        text = "when using `top_logprobs`, `logprobs` must be set to true."
        raise _related(text, "top_logprobs")
    if not is_chat and body.get("prompt") in (None, ""):
        text = "Either prompt or prompt_embeds must be provided and non-empty."
        raise _related(text, "prompt")


def _related(message: str, param: str) -> Refusal:
    return Refusal(f"{message} (parameter={param})", param, is_unread=True)


def _forwarded(body: Body) -> list[int] | None:
    """Tokens that another engine made of this prompt, which are not made again."""
    ids = (body.get("kv_transfer_params") or {}).get("prompt_token_ids")
    if ids is None or body.get("echo"):
        return None
    if not isinstance(ids, list) or not all(type(each) is int and each >= 0 for each in ids):
        raise Refusal(
            "`kv_transfer_params['prompt_token_ids']` must be a non-empty list of non-negative "
            "integers. (parameter=kv_transfer_params.prompt_token_ids)",
            "kv_transfer_params.prompt_token_ids",
        )
    return ids or None


def _chat(body: Body, tokenizer: Tokenizer) -> list[list[int]]:
    if not body["messages"]:
        raise Refusal(
            "Cannot apply chat template to an empty conversation. Provide at least one message."
        )
    forwarded = _forwarded(body)
    if forwarded:
        return [forwarded]
    try:
        ids = tokenizer.encode_chat(
            body["messages"],
            body.get("tools"),
            add_generation_prompt=body.get("add_generation_prompt", True),
            values=template_values(body),
        )
    except ValueError as error:
        raise Refusal(str(error)) from error
    return [ids]


def template_values(body: Body) -> Body:
    """What a chat's template sees besides messages and tools.

    Raises:
        Refusal: What is to be seen is no object.
    """
    asked = body.get("chat_template_kwargs") or {}
    if not isinstance(asked, dict):
        text = "Input should be a valid dictionary"
        raise invalid("dict_type", "body.chat_template_kwargs", text, asked)
    effort = body.get("reasoning_effort")
    values: Body = {"documents": body.get("documents"), "reasoning_effort": effort}
    if effort is not None and "enable_thinking" not in asked:
        values["enable_thinking"] = effort != "none"
    return {**asked, **{name: value for name, value in values.items() if value is not None}}


def _prompts(body: Body, tokenizer: Tokenizer) -> list[list[int]]:
    prompt = body["prompt"]
    if prompt == []:
        raise Refusal("You must pass at least one prompt")
    forwarded = _forwarded(body)
    if forwarded:
        return [forwarded]
    several = prompt if isinstance(prompt, list) and not isinstance(prompt[0], int) else [prompt]
    prompts = []
    for each in several:
        if isinstance(each, str):
            prompts.append(tokenizer.encode(each))
        elif isinstance(each, list) and all(type(token) is int for token in each):
            prompts.append(each)
        else:
            text = "Input should be a valid string"
            raise invalid("string_type", "body.prompt", text, prompt)
    return prompts


def _check_prompt(prompt: list[int], limits: Limits) -> None:
    if not prompt:
        raise Refusal("The decoder prompt cannot be empty")
    for token in (min(prompt), max(prompt)):
        if not 0 <= token < limits.vocab_size:
            raise Refusal(f"Token id {token} is out of vocabulary")
    most = limits.max_model_tokens
    if len(prompt) > most:
        raise Refusal(
            f"This model's maximum context length is {most} tokens. However, your prompt contains "
            f"{len(prompt)} input tokens, which exceeds this limit even without any output tokens. "
            f"Please reduce the length of the input prompt. "
            f"(parameter=input_tokens, value={len(prompt)})",
            "input_tokens",
        )


def _max_tokens(body: Body, num_prompt: int, limits: Limits, *, is_chat: bool) -> int:
    temperature = body.get("temperature")
    if isinstance(temperature, int | float) and temperature < 0:
        given = float(temperature)
        text = f"temperature must be non-negative, got {given}."
        raise Refusal(f"{text} (parameter=temperature, value={given})", "temperature")
    asked = body.get("max_tokens")
    if is_chat and body.get("max_completion_tokens") is not None:
        asked = body["max_completion_tokens"]
    if asked is None:
        asked = limits.default_max_tokens if is_chat else 16
    allowed = min(asked, limits.max_model_tokens - num_prompt)
    if allowed < 1:
        text = f"max_tokens must be at least 1, got {allowed}."
        raise Refusal(f"{text} (parameter=max_tokens, value={allowed})", "max_tokens")
    least = body.get("min_tokens") or 0
    if least > allowed:
        raise Refusal(
            f"min_tokens must be less than or equal to max_tokens={allowed}, got {least}."
        )
    return int(allowed)
