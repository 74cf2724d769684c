"""Records what a real engine makes of prompts: token ids of conversations and texts.

Starts one engine with the tiny model, asks it, and writes one JSON object a line: the endpoint's
path, the client's body, the ids. Chats are asked twice, of `/tokenize` and of the endpoint's own
`/render`, and have to agree; the other endpoints are asked of their `/render` alone. Beside it go
the model's tokenizer files.

Usage: ``python tools/record_tokenize.py [FOLDER]``; the folder holds `vllm-0.32.0/` and
`tokenizer/`.
"""

from __future__ import annotations

import itertools
import json
import random
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx

import engine_env
from real_engine import launch
from real_engine.launch import Engines, EngineSpec, Role
from transload_router.core.bodies.endpoints import ENDPOINTS
from transload_router.core.bodies.members import read_members
from transload_router.core.tokens.asking import tokenize_body
from transload_router.core.tokens.job import ChatJob, KnownTokens, TextJob, Unknown
from transload_router.core.tokens.read import read_prompt

VECTORS = Path(__file__).resolve().parents[1] / "tests" / "protocol" / "vectors"
VERSION = "vllm-0.32.0"
NUM_CHATS = 200
NUM_TEXTS = 100
SEED = 32
ASK_S = 30.0

Body = dict[str, Any]

_WORDS = [
    *("the", "import", "self", "return", "def", "blocks", "of", "a", "prompt", "are", "read"),
    *("once", "12", "3.14", "x==y", "naïve", "Straße", "東京都", "привет", "🙂", "مرحبا", "ไทย"),
    *("👩\u200d👩\u200d👧", "e\u0301", "\u200d", "\xa0", "…", "Ⅷ", "ﬁ", "{'a':", "1}"),
    *("\t\t", "\n\n", "\r\n", "", "<|im_end|>", "<|im_start|>user", "</tool_call>"),
    *("<|endoftext|>", "<tool_call>"),
]

_WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Wetter, naïve <b>&</b>",
        "parameters": {
            "type": "object",
            "required": ["city"],
            "properties": {
                "city": {"type": "string", "enum": ["東京", "Köln"]},
                "n": {"max": 1.50},
            },
        },
    },
}
_CLOCK = {"function": {"name": "clock", "strict": True, "unknown": 1}, "type": "function"}
_PARTS: list[Any] = [
    {"type": "text", "text": "first part"},
    {"type": "text", "text": "", "cache_control": {"type": "ephemeral"}},
    "a bare string",
    {"type": "refusal", "refusal": "no"},
    {"type": "thinking", "thinking": "hm", "closed": True},
    {"type": "output_text", "text": "out"},
    {"type": "input_text", "text": "in"},
]


def _text(rng: random.Random, most: int = 14) -> str:
    return " ".join(rng.choices(_WORDS, k=rng.randint(0, most)))


def _content(rng: random.Random) -> Any:
    kind = rng.random()
    if kind < 0.75:
        return _text(rng)
    if kind < 0.8:
        return ""
    return rng.sample(_PARTS, k=rng.randint(0, len(_PARTS)))


def _call(rng: random.Random, number: int) -> Body:
    arguments = rng.choice(
        (
            "",
            "{}",
            "not json",
            "[1]",
            '{"city": "東京", "n": 1.50, "deep": {"b": [true, null], "a": "\\u00e9<"}}',
            json.dumps({"q": _text(rng, 4)}),
        )
    )
    function = {"name": rng.choice(("get_weather", "clock")), "arguments": arguments}
    return {"id": f"call_{number}", "type": "function", "function": function}


def _assistant(rng: random.Random) -> list[Body]:
    """An assistant's turn, with the answers of the tools it called."""
    message: Body = {"role": "assistant", "content": _content(rng)}
    if rng.random() < 0.2:
        message["reasoning" if rng.random() < 0.5 else "reasoning_content"] = _text(rng, 4)
    if rng.random() > 0.3:
        return [message]
    calls = [_call(rng, number) for number in range(rng.randint(0, 2))]
    message["tool_calls"] = calls
    if calls and rng.random() < 0.5:
        message["content"] = None
    answers = [
        {"role": "tool", "tool_call_id": call["id"], "content": _content(rng)} for call in calls
    ]
    return [message, *answers]


def _chat(rng: random.Random, number: int) -> Body:
    messages: list[Body] = []
    if rng.random() < 0.5:
        messages.append({"role": rng.choice(("system", "developer")), "content": _content(rng)})
    for _ in range(rng.randint(1, 4)):
        messages.append({"role": "user", "content": _content(rng)})
        messages += _assistant(rng)
    if rng.random() < 0.6:
        messages.append({"role": "user", "content": _content(rng), "name": "ann"})
    body: Body = {"model": launch.MODEL_NAME, "messages": messages}
    if rng.random() < 0.3:
        body["tools"] = rng.choice(([_WEATHER], [_CLOCK, _WEATHER]))
    if rng.random() < 0.2:
        body["chat_template_kwargs"] = {"enable_thinking": False, "add_generation_prompt": False}
    if number % 10 == 3:
        said = _text(rng) or "so"
        messages.append({"role": "assistant", "content": said + rng.choice(("", " ", "\n"))})
        body |= {"continue_final_message": True, "add_generation_prompt": False}
    elif number % 10 == 7:
        body["add_generation_prompt"] = False
    if number % 10 == 1:
        body["add_special_tokens"] = True
    return body


def _chats(rng: random.Random) -> Iterator[Body]:
    system = {"role": "system", "content": "x-anthropic-billing-header: a=1; b\nBe brief."}
    yield {"model": launch.MODEL_NAME, "messages": [system, {"role": "user", "content": "Hi"}]}
    for number in itertools.count(1):
        yield _chat(rng, number)


def _texts(rng: random.Random) -> Iterator[Body]:
    for number in itertools.count():
        prompt: Any = _text(rng, 30) or "x"
        body: Body = {"model": launch.MODEL_NAME, "prompt": prompt}
        if number % 10 == 5:
            body["add_special_tokens"] = False
        yield body


def _cuts(rng: random.Random) -> Iterator[Body]:
    """Prompts that are cut, sent as ids, or sent in a list of one."""
    for number in range(12):
        ids = [rng.randrange(2000) for _ in range(30)]
        prompt = (_text(rng, 30) + " end", [_text(rng, 20) + " end"], ids, [ids])[number % 4]
        body: Body = {"model": launch.MODEL_NAME, "prompt": prompt}
        if number >= 4:
            body["truncate_prompt_tokens"] = rng.randint(1, 12)
        if number >= 8:
            body["truncation_side"] = rng.choice(("left", "right"))
        yield body


def _anthropic(rng: random.Random) -> Iterator[Body]:
    use = {"type": "tool_use", "id": "t1", "name": "clock", "input": {"zone": "東京", "n": 2.0}}
    texts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    result = {"type": "tool_result", "tool_use_id": "t1", "content": texts}
    thought = {"type": "thinking", "thinking": "hm", "signature": "s"}
    header = {"type": "text", "text": "x-anthropic-billing-header: a"}
    tools = [{"name": "clock", "description": "tells", "input_schema": {"properties": {}}}]
    ask = [{"role": "user", "content": _text(rng)}]
    called = [*ask, {"role": "assistant", "content": [thought, texts[0], use]}]
    late = [*ask, {"role": "assistant", "content": "ok"}, {"role": "system", "content": "late"}]
    for body in (
        {"messages": ask},
        {"messages": ask, "system": "Be brief."},
        {"messages": ask, "system": [header, *texts]},
        {"messages": ask, "tools": tools, "output_config": {"effort": "low"}},
        {"messages": [{"role": "user", "content": texts}], "thinking": {"type": "disabled"}},
        {"messages": [*called, {"role": "user", "content": [result, texts[1]]}], "tools": tools},
        {"messages": [*called, {"role": "user", "content": [{**result, "content": "12"}]}]},
        {"messages": [*late, {"role": "user", "content": "go"}], "system": "first"},
        {"messages": [*ask, {"role": "assistant", "content": []}]},
    ):
        yield {"model": launch.MODEL_NAME, "max_tokens": 8, **body}


def _responses(rng: random.Random) -> Iterator[Body]:
    tool = {"type": "function", "name": "clock", "parameters": {"type": "object"}, "strict": False}
    call = {"type": "function_call", "call_id": "c1", "name": "clock", "arguments": '{"z": "é"}'}
    output = {"type": "function_call_output", "call_id": "c1", "output": "12:00"}
    said = {"type": "output_text", "text": "well"}
    ask = {"role": "user", "content": _text(rng)}
    parts = {"role": "user", "content": [{"type": "input_text", "text": "a"}] * 2}
    thought = {
        "type": "reasoning",
        "id": "r1",
        "summary": [],
        "content": [{"type": "reasoning_text", "text": "hm"}],
    }
    for body in (
        {"input": _text(rng)},
        {"input": "Hi", "instructions": "Be brief.", "reasoning": {"effort": "low"}},
        {"input": [ask, parts]},
        {"input": [ask, thought, call, output], "tools": [tool]},
        {"input": [ask, {"role": "assistant", "content": "ok"}, call, output, ask]},
        {"input": [ask, {"type": "message", "role": "assistant", "content": [said]}, ask]},
        {"input": [{"role": "developer", "content": "d"}, ask, {"role": "system", "content": "s"}]},
        {
            "input": [
                ask,
                {
                    "type": "message",
                    "role": "assistant",
                    "status": "incomplete",
                    "content": [said],
                },
            ]
        },
    ):
        yield {"model": launch.MODEL_NAME, **body}


def _arguments(rng: random.Random) -> Iterator[Body]:
    """Members of chats that `/tokenize` does not have."""
    messages = [{"role": "user", "content": _text(rng)}]
    for own in (
        {"reasoning_effort": "low"},
        {"documents": [{"title": "t", "text": "x"}]},
        {"truncate_prompt_tokens": 5},
        {"truncate_prompt_tokens": 5, "truncation_side": "right"},
        {"tools": [_WEATHER], "tool_choice": "none"},
        {"chat_template_kwargs": {"documents": None, "reasoning_effort": "auto"}},
    ):
        yield {"model": launch.MODEL_NAME, "messages": messages, **own}


class Refused(RuntimeError):
    """The engine does not take a body; the message has both."""


def _ask(client: httpx.Client, path: str, body: Body | bytes) -> Any:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    answer = client.post(path, content=content, headers={"content-type": "application/json"})
    if answer.status_code != 200:
        raise Refused(f"{path} answers {answer.status_code}: {answer.text}\n{content!r}")
    return answer.json()


def _rendered(client: httpx.Client, path: str, body: Body) -> list[int]:
    answer = _ask(client, f"{path}/render", body)
    one: list[int] = (answer[0] if isinstance(answer, list) else answer)["token_ids"]
    return one


def _tokenized(client: httpx.Client, path: str, body: Body) -> list[int]:
    job = read_prompt(ENDPOINTS[path].name, read_members(json.dumps(body).encode()))
    if isinstance(job, Unknown | KnownTokens):
        raise RuntimeError(f"not a prompt to tokenise: {job} {body}")
    assert isinstance(job, TextJob | ChatJob)
    ids: list[int] = _ask(client, "/tokenize", tokenize_body(job))["tokens"]
    return ids


def _agreed(client: httpx.Client, path: str, bodies: Iterator[Body]) -> Iterator[Body]:
    """What `/tokenize` and `/render` agree on; bodies that the engine refuses are left out.

    Its types for content parts depend on a list's first part, so odd mixtures are refused.
    """
    for body in bodies:
        try:
            ids = _tokenized(client, path, body)
        except Refused:
            continue
        if ids != _rendered(client, path, body):
            raise RuntimeError(f"/tokenize and {path}/render differ: {body}")
        yield {"path": path, "body": body, "tokens": ids}


def record(url: str) -> Iterator[Body]:
    """One vector after the other, from the engine at `url`."""
    rng = random.Random(SEED)
    chat, completions = "/v1/chat/completions", "/v1/completions"
    with httpx.Client(base_url=url, timeout=ASK_S) as client:
        yield from itertools.islice(_agreed(client, chat, _chats(rng)), NUM_CHATS)
        yield from itertools.islice(_agreed(client, completions, _texts(rng)), NUM_TEXTS)
        for path, bodies in (
            (chat, _arguments(rng)),
            (completions, _cuts(rng)),
            ("/v1/messages", _anthropic(rng)),
            ("/v1/responses", _responses(rng)),
        ):
            for body in bodies:
                yield {"path": path, "body": body, "tokens": _rendered(client, path, body)}


def main(folder: Path) -> None:
    """Record everything into the folder."""
    environment = engine_env.ensure()
    model = launch.ensure_model(environment)
    target = folder / VERSION / "tokenize.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer").mkdir(exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        shutil.copy(model / name, folder / "tokenizer" / name)
    logs = Path(tempfile.mkdtemp(prefix="record-"))
    with Engines(environment, model, logs) as engines:
        engine = engines.start(EngineSpec("aggregated", Role.AGGREGATED))
        engine.wait_ready()
        lines = [json.dumps(vector, ensure_ascii=False) for vector in record(engine.url)]
    target.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    print(f"{len(lines)} vectors, {target.stat().st_size} bytes: {target}")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else VECTORS)
