"""Round trips of the openai and anthropic SDKs: what they see is the aggregated engine's answer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import anthropic
import openai
import pytest

from engine.world import REQUEST_S, Ledger, World, assert_idle
from real_engine.launch import MODEL_NAME

pytestmark = [pytest.mark.engine, pytest.mark.timeout(300)]

TEXT = "def area(width, height): return width * height\n" * 20
USER: Any = [{"role": "user", "content": TEXT}]
MAX_TOKENS = 24
GREEDY = {"temperature": 0}

TOOL_TOKENS = 600
"""A call ends by its grammar; a random model first writes some 250 tokens of allowed blanks."""

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"unit": {"type": "string", "enum": ["c", "f"]}, "is_today": {"type": "boolean"}},
    "required": ["unit", "is_today"],
    "additionalProperties": False,
}
FUNCTION: Any = {"name": "weather", "parameters": SCHEMA, "strict": True}
CHAT_TOOL: Any = {"type": "function", "function": FUNCTION}
CHAT_CHOICE: Any = {"type": "function", "function": {"name": "weather"}}
RESPONSES_TOOL: Any = {"type": "function", **FUNCTION}
MESSAGES_TOOL: Any = {"name": "weather", "input_schema": SCHEMA, "strict": True}

Ask = Callable[[openai.OpenAI], Any]
AskAnthropic = Callable[[anthropic.Anthropic], Any]


def chat_plain(client: openai.OpenAI, **options: Any) -> Any:
    options = {"max_tokens": MAX_TOKENS, "temperature": 0, **options}
    answer = client.chat.completions.create(model=MODEL_NAME, messages=USER, **options)
    choice = answer.choices[0]
    return choice.message.content, choice.finish_reason, answer.usage.prompt_tokens


def chat_stream(client: openai.OpenAI) -> Any:
    stream = client.chat.completions.create(
        model=MODEL_NAME, messages=USER, max_tokens=MAX_TOKENS, temperature=0, stream=True
    )
    choices = [chunk.choices[0] for chunk in stream]
    return "".join(choice.delta.content or "" for choice in choices), choices[-1].finish_reason


def chat_stop(client: openai.OpenAI) -> Any:
    """Stops at a piece of the answer that it would else contain."""
    whole = chat_plain(client)[0]
    stopped = chat_plain(client, stop=[whole[10:14]])
    assert stopped[0] == whole[: whole.index(whole[10:14])]
    assert stopped[1] == "stop"
    return stopped


def chat_seed(client: openai.OpenAI) -> Any:
    return chat_plain(client, temperature=1.0, seed=2**62 + 7)


def chat_logprobs(client: openai.OpenAI) -> Any:
    answer = client.chat.completions.create(
        model=MODEL_NAME,
        messages=USER,
        max_tokens=8,
        temperature=0,
        logprobs=True,
        top_logprobs=3,
    )
    logprobs = answer.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.content is not None
    return [
        (each.token, round(each.logprob, 3), [top.token for top in each.top_logprobs])
        for each in logprobs.content
    ]


def chat_tools(client: openai.OpenAI) -> Any:
    answer = client.chat.completions.create(
        model=MODEL_NAME,
        messages=USER,
        max_tokens=TOOL_TOKENS,
        temperature=0,
        tools=[CHAT_TOOL],
        tool_choice=CHAT_CHOICE,
    )
    calls: Any = answer.choices[0].message.tool_calls
    (call,) = calls
    assert set(json.loads(call.function.arguments)) == {"unit", "is_today"}
    return call.function.name, call.function.arguments


def completions_plain(client: openai.OpenAI) -> Any:
    answer = client.completions.create(
        model=MODEL_NAME, prompt=TEXT, max_tokens=MAX_TOKENS, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    assert choice.logprobs is not None
    return choice.text, choice.finish_reason, choice.logprobs.tokens


def completions_stream(client: openai.OpenAI) -> Any:
    stream = client.completions.create(
        model=MODEL_NAME, prompt=TEXT, max_tokens=MAX_TOKENS, temperature=0, stream=True
    )
    return "".join(chunk.choices[0].text for chunk in stream)


def responses_plain(client: openai.OpenAI) -> Any:
    answer = client.responses.create(
        model=MODEL_NAME, input=TEXT, max_output_tokens=MAX_TOKENS, temperature=0, store=False
    )
    assert answer.usage is not None
    return answer.output_text, answer.status, answer.usage.input_tokens


def responses_stream(client: openai.OpenAI) -> Any:
    stream = client.responses.create(
        model=MODEL_NAME,
        input=TEXT,
        max_output_tokens=MAX_TOKENS,
        temperature=0,
        store=False,
        stream=True,
    )
    events = list(stream)
    assert events[0].type == "response.created"
    assert events[-1].type == "response.completed"
    return "".join(event.delta for event in events if event.type == "response.output_text.delta")


def responses_tools(client: openai.OpenAI) -> Any:
    answer = client.responses.create(
        model=MODEL_NAME,
        input=TEXT,
        max_output_tokens=TOOL_TOKENS,
        temperature=0,
        store=False,
        tools=[RESPONSES_TOOL],
        tool_choice={"type": "function", "name": "weather"},
    )
    (call,) = [item for item in answer.output if item.type == "function_call"]
    assert set(json.loads(call.arguments)) == {"unit", "is_today"}
    return call.name, call.arguments


def messages_plain(client: anthropic.Anthropic) -> Any:
    answer = client.messages.create(
        model=MODEL_NAME, messages=USER, max_tokens=MAX_TOKENS, extra_body=GREEDY
    )
    (block,) = answer.content
    assert block.type == "text"
    return block.text, answer.stop_reason, _prompt_tokens(answer.usage)


def messages_stream(client: anthropic.Anthropic) -> Any:
    with client.messages.stream(
        model=MODEL_NAME, messages=USER, max_tokens=MAX_TOKENS, extra_body=GREEDY
    ) as stream:
        text = "".join(stream.text_stream)
        last = stream.get_final_message()
    return text, last.stop_reason


def messages_tools(client: anthropic.Anthropic) -> Any:
    answer = client.messages.create(
        model=MODEL_NAME,
        messages=USER,
        max_tokens=TOOL_TOKENS,
        extra_body=GREEDY,
        tools=[MESSAGES_TOOL],
        tool_choice={"type": "tool", "name": "weather"},
    )
    (call,) = [block for block in answer.content if block.type == "tool_use"]
    assert set(call.input) == {"unit", "is_today"}
    return call.name, call.input


@pytest.mark.parametrize(
    "ask",
    [
        chat_plain,
        chat_stream,
        chat_seed,
        chat_logprobs,
        chat_tools,
        completions_plain,
        completions_stream,
        responses_plain,
        responses_stream,
        responses_tools,
    ],
)
def test_openai(world: World, ask: Ask) -> None:
    with _loading(world), _openai(world.router.url) as client:
        ours = ask(client)
    with _openai(world.aggregated.url) as client:
        assert ours == ask(client)


def test_openai_stop(world: World) -> None:
    """Two requests, of which the second finds the first one's blocks on both engines."""
    with _openai(world.router.url) as client, _openai(world.aggregated.url) as theirs:
        assert chat_stop(client) == chat_stop(theirs)
    assert_idle(world)


@pytest.mark.parametrize("ask", [messages_plain, messages_stream, messages_tools])
def test_anthropic(world: World, ask: AskAnthropic) -> None:
    with _loading(world), _anthropic(world.router.url) as client:
        ours = ask(client)
    with _anthropic(world.aggregated.url) as client:
        assert ours == ask(client)


def chat_cached(world_url: str) -> tuple[int, int | None]:
    with _openai(world_url) as client:
        usage = client.chat.completions.create(model=MODEL_NAME, messages=USER, max_tokens=2).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def chat_stream_cached(world_url: str) -> tuple[int, int | None]:
    with _openai(world_url) as client:
        stream = client.chat.completions.create(
            model=MODEL_NAME,
            messages=USER,
            max_tokens=2,
            stream=True,
            stream_options={"include_usage": True},
        )
        usage = list(stream)[-1].usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def completions_cached(world_url: str) -> tuple[int, int | None]:
    with _openai(world_url) as client:
        usage = client.completions.create(model=MODEL_NAME, prompt=TEXT, max_tokens=2).usage
    assert usage is not None
    assert usage.prompt_tokens_details is not None
    return usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens


def responses_cached(world_url: str) -> tuple[int, int | None]:
    with _openai(world_url) as client:
        usage = client.responses.create(
            model=MODEL_NAME, input=TEXT, max_output_tokens=2, store=False
        ).usage
    assert usage is not None
    return usage.input_tokens, usage.input_tokens_details.cached_tokens


def messages_cached(world_url: str) -> tuple[int, int | None]:
    with _anthropic(world_url) as client:
        usage = client.messages.create(model=MODEL_NAME, messages=USER, max_tokens=2).usage
    return _prompt_tokens(usage), usage.cache_read_input_tokens


@pytest.mark.parametrize(
    "ask",
    [chat_cached, chat_stream_cached, completions_cached, responses_cached, messages_cached],
)
def test_cached_tokens(world: World, ask: Callable[[str], tuple[int, int | None]]) -> None:
    """Cold, nothing is cached; warm, as many tokens as on one engine, though prefill has them."""
    cold, warm = ask(world.router.url), ask(world.router.url)
    assert (cold, warm) == (ask(world.aggregated.url), ask(world.aggregated.url))
    assert not cold[1]
    assert warm[1]


@contextmanager
def _loading(world: World) -> Iterator[None]:
    """Decode loads the one prompt that is sent meanwhile, whole, and both engines end idle."""
    ledger = Ledger(world)
    yield
    moved = ledger.moved()
    assert moved.loaded_tokens > 256, f"not loaded from prefill: {moved}"
    assert moved.failed_transfers == moved.late_notifications == moved.expired_leases == 0
    assert_idle(world)


def _prompt_tokens(usage: anthropic.types.Usage) -> int:
    """What the prompt had: input_tokens leaves out what was read from or written to the cache."""
    read, written = usage.cache_read_input_tokens, usage.cache_creation_input_tokens
    return usage.input_tokens + (read or 0) + (written or 0)


def _openai(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=REQUEST_S)


def _anthropic(url: str) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=url, api_key="none", max_retries=0, timeout=REQUEST_S)
