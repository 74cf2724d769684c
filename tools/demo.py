"""The whole thing on one machine: two real vLLM engines, the router, two turns of a chat.

``make demo ENGINE=vllm`` runs it and serves until Ctrl-C; with ``ONESHOT=1`` it ends after the
answers. The model is tiny and random, so its text is noise; the prompt's KV cache that travels is
real, and so is what the router says beforehand of the second turn's cached tokens.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

import openai
from openai.types.chat import ChatCompletionMessageParam as Message

import engine_env
from real_engine import launch
from real_engine.launch import Engine, Engines, EngineSpec, Role
from real_engine.router import RouterProcess

# Measured on 2 shared cores (x86-64 with AVX2, load 3-6, 2026-11): installing 213-291 s, of which
# downloads from a near mirror took 50 s; model 12-16 s; importing vLLM 18-20 s; engines 9-16 s.
COLD_START = "5 to 15 minutes: it installs vLLM for CPU (about 4 GB, once per user), then starts"
WARM_START = "about 1 minute (the engines are installed already)"

PROMPT_CHARS = 2600
"""Of this file's text: some 1,000 tokens of the tiny tokenizer, 8 blocks and a part."""

MAX_TOKENS = 48
POLICY = "prefix"
"""Splits every prompt. By cost, a model this small is read faster than its blocks can travel."""
BEAT_S = 5.0


@dataclass(frozen=True)
class Answer:
    """What came back from the router, and when."""

    text: str
    headers: dict[str, str]
    num_prompt_tokens: int
    first_token_s: float
    total_s: float


class DemoFailedError(RuntimeError):
    """The demo ran but did not show what it is there to show."""


def main() -> int:
    """Runs the demo; the exit status."""
    options = argparse.ArgumentParser(description="Two real engines and the router.")
    options.add_argument("--oneshot", action="store_true", help="end after two turns")
    is_oneshot = options.parse_args().oneshot
    signal.signal(signal.SIGTERM, _end)
    try:
        with tempfile.TemporaryDirectory(prefix="transload-demo-") as logs:
            _run(Path(logs), is_oneshot)
    except KeyboardInterrupt:
        say("stopped")
        return 0 if not is_oneshot else 130
    except (engine_env.EngineEnvError, launch.EngineFailedError, DemoFailedError) as error:
        say(f"failed: {error}")
        return 1
    return 0


def _run(logs: Path, is_oneshot: bool) -> None:
    started = time.monotonic()
    say(f"this takes {WARM_START if engine_env.is_complete() else COLD_START}")
    environment = engine_env.ensure()
    with step("the tiny model"):
        model = launch.ensure_model(environment)
    with Engines(environment, model, logs) as engines:
        with step("importing vLLM, once for both engines"):
            engines.wait_zygote()
        prefill = engines.start(EngineSpec("prefill", Role.PREFILL, has_events=True))
        decode = engines.start(EngineSpec("decode", Role.DECODE, has_events=True))
        with step("starting the prefill engine and the decode engine"):
            prefill.wait_ready()
            decode.wait_ready()
        options = ["--policy", POLICY]
        router = RouterProcess([prefill.url], [decode.url], logs / "router.log", options)
        with router:
            with step("starting the router, which tries one handoff"):
                router.wait_ready()
            say(f"ready after {time.monotonic() - started:.0f} s")
            _show(router, prefill, decode)
            if not is_oneshot:
                _serve(router)
            with step("stopping"):
                router.stop()
                engines.close()


def _show(router: RouterProcess, prefill: Engine, decode: Engine) -> None:
    """Streams two turns of a chat and says who did what for them."""
    text = Path(__file__).read_text()[:PROMPT_CHARS]
    messages: list[Message] = [{"role": "user", "content": f"Explain this program:\n{text}"}]
    say("asking for a chat answer (a random model: expect noise):")
    before = decode.metrics()
    answer = _stream_chat(router.url, messages)
    after = decode.metrics()
    loaded = int(_grown("vllm:external_prefix_cache_hits_total", before, after))
    moved = _grown("vllm:nixl_bytes_transferred_sum", before, after)
    headers = answer.headers
    prefill_s = float(headers.get("x-transload-prefill-seconds", "nan"))
    say("")
    say(f"path            {headers.get('x-transload-path')}")
    say(f"prefill         {headers.get('x-transload-prefill')} at {prefill.url}: {prefill_s:.3f} s")
    say(
        f"decode          {headers.get('x-transload-decode')} at {decode.url}: first token "
        f"{answer.first_token_s - prefill_s:.3f} s after prefill, "
        f"all in {answer.total_s - prefill_s:.3f} s"
    )
    say(
        f"prompt          {answer.num_prompt_tokens} tokens, of which decode loaded {loaded} "
        f"({moved / 1e6:.1f} MB by NIXL) instead of computing them"
    )
    if loaded != answer.num_prompt_tokens:
        raise DemoFailedError("decode was to load the whole prompt from prefill, and did not")
    say("")
    say("asking on, in the same conversation:")
    messages += [
        {"role": "assistant", "content": answer.text},
        {"role": "user", "content": "And what does it print?"},
    ]
    _show_second(_stream_chat(router.url, messages))


def _show_second(answer: Answer) -> None:
    """Says what the router knew of prefill's cache before it sent the second turn."""
    headers = answer.headers
    predicted = headers.get("x-transload-predicted-cached-tokens")
    reported = headers.get("x-transload-cached-tokens")
    say("")
    say(
        f"second turn     {answer.num_prompt_tokens} tokens; in prefill's cache, as the router "
        f"predicted from its events: {predicted}, as the engine reported: {reported}"
    )
    if predicted != reported or predicted in (None, "0"):
        raise DemoFailedError("the router was to know what prefill had cached, and did not")


def _stream_chat(url: str, messages: list[Message]) -> Answer:
    """One chat request by the openai SDK, its text printed as it comes."""
    pieces: list[str] = []
    num_prompt_tokens = 0
    first_token_s = 0.0
    with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        started = time.monotonic()
        raw = client.chat.completions.with_raw_response.create(
            model=launch.MODEL_NAME,
            messages=messages,
            max_tokens=MAX_TOKENS,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_headers={"x-transload-explain": "1"},
        )
        for chunk in raw.parse():
            if chunk.usage is not None:
                num_prompt_tokens = chunk.usage.prompt_tokens
            piece = chunk.choices[0].delta.content if chunk.choices else None
            if piece:
                first_token_s = first_token_s or time.monotonic() - started
                pieces.append(piece)
                print(ascii(piece)[1:-1], end="", flush=True)
        print(flush=True)
        total_s = time.monotonic() - started
    headers = {name.lower(): value for name, value in raw.headers.items()}
    return Answer("".join(pieces), headers, num_prompt_tokens, first_token_s, total_s)


def _serve(router: RouterProcess) -> None:
    """Blocks until Ctrl-C, or until the router ends."""
    say("")
    say("serving until Ctrl-C; try:")
    say(f"  curl -i {router.url}/v1/chat/completions -H 'content-type: application/json' \\")
    say('    -H \'x-transload-explain: 1\' -d \'{"model": "tiny", "max_tokens": 16, ')
    say('      "messages": [{"role": "user", "content": "hello"}]}\'')
    with contextlib.suppress(KeyboardInterrupt):
        router.process.wait()
        raise DemoFailedError(f"the router ended:\n{router.log.read_text()[-2000:]}")


def _grown(name: str, before: dict[str, float], after: dict[str, float]) -> float:
    return after.get(name, 0.0) - before.get(name, 0.0)


@contextlib.contextmanager
def step(what: str) -> Iterator[None]:
    """Says when a step begins, every few seconds that it goes on, and when it is over."""
    started = time.monotonic()
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(BEAT_S):
            say(f"  ... {what}: {time.monotonic() - started:.0f} s")

    say(f"{what} ...")
    beats = threading.Thread(target=beat, daemon=True)
    beats.start()
    try:
        yield
    finally:
        is_over.set()
        beats.join()
    say(f"  done in {time.monotonic() - started:.1f} s")


def say(line: str) -> None:
    """One line of the demo's own."""
    print(f"[demo] {line}" if line else "", flush=True)


def _end(signum: int, frame: FrameType | None) -> NoReturn:
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
