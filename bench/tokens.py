"""What a prompt's token ids cost: a first turn, the next turn, the parts of both.

Conversations of 2k to 128k tokens, of few long or many short messages, under a small and a
Qwen-like chat template. Each figure is the least CPU time of several rounds, of this process, with
the texts of a round new to the caches where the turn is. *Cold* is everything from the body to the
last block's key, *next* the same for one turn more, whose answer and question are short. Beside
them stands the cost of only what is new: its tokenisation and hashing. The target: a next turn at
32k tokens costs under 1 ms more than that.

Usage: ``python bench/tokens.py [--rounds N]``; needs no engine.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import pathlib
import platform
import random
import time
from collections.abc import Sequence
from importlib.metadata import version
from typing import Any

from transload_router.core.bodies.members import read_members
from transload_router.core.index.keys import Identity
from transload_router.core.prompt import Prompt
from transload_router.core.tokens.build import TokenizerFiles, build
from transload_router.core.tokens.job import ChatJob
from transload_router.core.tokens.read import read_prompt
from transload_router.core.tokens.tokens import Plan, Tokens

ROOT = pathlib.Path(__file__).resolve().parents[1]
VECTORS = ROOT / "tests" / "protocol" / "vectors" / "tokenizer"
RESULTS = ROOT / "bench" / "results" / "tokens.json"

SIZES = (2_000, 8_000, 32_000, 128_000)
MESSAGE_TOKENS = {"long": 1_600, "short": 200}
"""A retrieval or coding assistant's messages, and a chat's or an agent's."""

BLOCK_SIZE = 16
TARGET_MS = 1.0
TARGET_SIZE = 32_000

QWEN_LIKE = """\
{%- if tools %}{{- '<|im_start|>system\\n' }}{%- if messages[0].role == 'system' %}
{{- messages[0].content + '\\n\\n' }}{%- endif %}{%- for tool in tools %}{{- tool | tojson }}
{%- endfor %}{{- '<|im_end|>\\n' }}{%- elif messages[0].role == 'system' %}
{{- '<|im_start|>system\\n' + messages[0].content + '<|im_end|>\\n' }}{%- endif %}
{%- set ns = namespace(multi_step_tool=true, last_query_index=messages|length - 1) %}
{%- for message in messages[::-1] %}{%- set index = (messages|length - 1) - loop.index0 %}
{%- if ns.multi_step_tool and message.role == "user" and message.content is string
    and not (message.content.startswith('<tool_response>')
    and message.content.endswith('</tool_response>')) %}
{%- set ns.multi_step_tool = false %}{%- set ns.last_query_index = index %}{%- endif %}{%- endfor %}
{%- for message in messages %}
{%- if message.content is string %}{%- set content = message.content %}
{%- else %}{%- set content = '' %}{%- endif %}
{%- if (message.role == "user") or (message.role == "system" and not loop.first) %}
{{- '<|im_start|>' + message.role + '\\n' + content + '<|im_end|>' + '\\n' }}
{%- elif message.role == "assistant" %}
{%- set reasoning = '' %}
{%- if message.reasoning_content is string %}{%- set reasoning = message.reasoning_content %}
{%- elif '</think>' in content %}
{%- set reasoning = content.split('</think>')[0].rstrip('\\n').split('<think>')[-1] %}
{%- set content = content.split('</think>')[-1].lstrip('\\n') %}{%- endif %}
{%- if loop.index0 > ns.last_query_index and (loop.last or reasoning) %}
{{- '<|im_start|>assistant\\n<think>\\n' + reasoning.strip('\\n') + '\\n</think>\\n\\n' }}
{{- content.lstrip('\\n') }}
{%- else %}{{- '<|im_start|>assistant\\n' + content }}{%- endif %}
{%- for call in message.tool_calls or [] %}{{- '\\n<tool_call>' + call.function.name }}
{{- call.function.arguments | tojson }}{{- '</tool_call>' }}{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- elif message.role == "tool" %}
{{- '<|im_start|>user\\n<tool_response>\\n' + content + '\\n</tool_response><|im_end|>\\n' }}
{%- endif %}{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}
{%- if enable_thinking is defined and enable_thinking is false %}
{{- '<think>\\n\\n</think>\\n\\n' }}{%- endif %}{%- endif %}
"""
"""The work of a template that looks back, splits texts and keeps state, as Qwen 3's does."""

_ME = Identity("bench")
Message = dict[str, Any]


def small_template() -> str:
    """The test model's."""
    return (VECTORS / "chat_template.jinja").read_text()


def load(template: str) -> Tokens:
    """The test model's tokenizer, of 2,048 tokens, with empty caches."""
    return build(
        TokenizerFiles(
            tokenizer=(VECTORS / "tokenizer.json").read_text(encoding="utf-8"),
            config=json.loads((VECTORS / "tokenizer_config.json").read_text()),
            chat_template=template,
        ),
        lambda form: form,
    )


def conversation(rng: random.Random, words: Sequence[str], size: int, per: int) -> list[Message]:
    """Messages of some `per` tokens each, of some `size` together, a question last."""
    # Source words of the standard library come to about 2.2 tokens each with this tokenizer.
    count = max(1, size // per) | 1
    return [
        {
            "role": ("user", "assistant")[number % 2],
            "content": " ".join(rng.choices(words, k=int(per / 2.2))),
        }
        for number in range(count)
    ]


def turn(tokens: Tokens, messages: list[Message]) -> dict[str, float]:
    """One request, step by step: CPU milliseconds of each, and its sizes."""
    body = json.dumps({"model": "m", "messages": messages}).encode()
    clock = time.process_time_ns
    began = clock()
    members = read_members(body)
    split = clock()
    job = read_prompt("chat", members)
    read = clock()
    assert isinstance(job, ChatJob)
    plan = tokens.plan(job, _ME)
    planned = clock()
    assert isinstance(plan, Plan)
    prompt = tokens.finish(plan)
    finished = clock()
    assert isinstance(prompt, Prompt)
    prompt.keys(BLOCK_SIZE)
    keyed = clock()
    steps = {
        "members": split - began,
        "read": read - split,
        "plan": planned - read,
        "finish": finished - planned,
        "keys": keyed - finished,
        "all": keyed - began,
    }
    sizes = {"num_tokens": prompt.num_tokens, "num_new_characters": plan.num_new_characters}
    return {name: nanoseconds / 1e6 for name, nanoseconds in steps.items()} | sizes


def rendering(tokens: Tokens, messages: list[Message]) -> float:
    """CPU milliseconds of the template alone."""
    job = ChatJob(messages, None, {"add_generation_prompt": True})
    began = time.process_time_ns()
    tokens._chat.text(job)
    return (time.process_time_ns() - began) / 1e6


def only_new(template: str, question: list[Message]) -> float:
    """CPU milliseconds of the new messages as a conversation of their own, its keys included."""
    fresh = load(template)
    cost = turn(fresh, question)
    return cost["finish"] + cost["keys"]


def measure(template: str, size: int, per: int, rounds: int) -> dict[str, Any]:
    """One row: a conversation's first turn, and its next ones."""
    rng = random.Random(size + per)
    words = pathlib.Path(json.__file__).read_text().split(" ")
    cold: list[dict[str, float]] = []
    warm: list[dict[str, float]] = []
    new: list[float] = []
    render: list[float] = []
    for _ in range(rounds):
        tokens = load(template)
        messages = conversation(rng, words, size, per)
        cold.append(turn(tokens, messages))
        for number in range(5):
            question = [
                {"role": "assistant", "content": f"It is {rng.random()}, as {number} has it."},
                {"role": "user", "content": f"And what about {rng.random()}?"},
            ]
            messages = messages + question
            warm.append(turn(tokens, messages))
            new.append(only_new(template, question))
            render.append(rendering(tokens, messages))
    best = min(warm, key=lambda cost: cost["all"])
    return {
        "num_messages": len(messages),
        "cold_ms": min(cold, key=lambda cost: cost["all"]),
        "next_ms": best,
        "next_median_ms": sorted(cost["all"] for cost in warm)[len(warm) // 2],
        "only_new_ms": min(new),
        "over_new_ms": best["all"] - min(new),
        "render_ms": min(render),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS)
    options = parser.parse_args(arguments)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    print("template  messages  tokens     cold     next  (over what is new; template)   CPU ms")
    rows = []
    for name, template in (("small", small_template()), ("qwen-like", QWEN_LIKE)):
        for kind, per in MESSAGE_TOKENS.items():
            for size in SIZES:
                row = measure(template, size, per, options.rounds)
                rows.append({"template": name, "messages": kind, "size": size, **row})
                print(
                    f"{name:9} {row['num_messages']:4} {kind:5}"
                    f"{row['next_ms']['num_tokens']:8.0f} {row['cold_ms']['all']:8.2f} "
                    f"{row['next_ms']['all']:8.3f}  ({row['over_new_ms']:.3f}; "
                    f"{row['render_ms']:.3f})"
                )
    held = [row for row in rows if row["size"] == TARGET_SIZE]
    worst = max(row["over_new_ms"] for row in held)
    print(
        f"next turn at {TARGET_SIZE} tokens: at most {worst:.3f} ms over what is new "
        f"(target {TARGET_MS} ms)"
    )
    report = {
        "date": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "command": f"python bench/tokens.py --rounds {options.rounds}",
        "machine": {"cpus": os.cpu_count(), "kernel": platform.release()},
        "versions": {
            "python": platform.python_version(),
            **{name: version(name) for name in ("jinja2", "msgspec", "tokenizers", "xxhash")},
        },
        "load_average": os.getloadavg()[0],
        "target_ms": TARGET_MS,
        "worst_over_new_ms": worst,
        "rows": rows,
    }
    options.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
