"""The reference engine as a process beside the real vLLM, and what is asked of both alike."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import httpx
import zmq

from engine.world import REQUEST_S, token_ids
from real_engine.launch import MODEL_NAME, STOP_GRACE_S, EngineFailedError
from transload_engine.server.model_command import load, model_parser, running
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.kv_events.events import Event, Stored

BLOCK_TOKENS: Final = 32
"""vLLM's smallest on a CPU."""

NUM_BLOCKS: Final = 2048
"""Room for all of `PROMPTS` at once, answers included, in 268 MB."""

HASH_SEED: Final = "7"
"""PYTHONHASHSEED of every engine here: one that nobody takes by default."""

NUM_PROMPTS: Final = 200
LONGEST: Final = 400

NUM_TOKENS: Final = 16
"""Of an answer."""

TIE: Final = 1e-4
"""Natural logarithm: of two tokens nearer than this, rounding may make either the likelier.

vLLM's logprobs differ from this engine's by up to 2e-5 (200 prompts, f32, x86-64 with AVX2)."""

_PROMPTS_SEED: Final = 4
"""Of 0 to 14 the one whose answers are furthest from a tie: no token leads by less than 3e-4."""

_ENVIRONMENT: Final = {"PYTHONHASHSEED": HASH_SEED, "OMP_NUM_THREADS": "1"}
"""On two shared cores at load 8 a step of 27,000 tokens took five times as long with two threads,
which wait for each other."""

_REPLAY_MS: Final = 10_000
_REPLAY_END: Final = b"\xff" * 8
_PR_SET_PDEATHSIG: Final = 1

_GREEDY: Final = {
    "model": MODEL_NAME,
    "max_tokens": NUM_TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "return_tokens_as_token_ids": True,
    "logprobs": 2,
}


def _prompt(number: int) -> list[int]:
    length = 1 + (LONGEST - 1) * number**2 // (NUM_PROMPTS - 1) ** 2
    return token_ids(length, f"reference {_PROMPTS_SEED} {number}")


PROMPTS: Final = tuple(_prompt(number) for number in range(NUM_PROMPTS))
"""Of 1 to 400 tokens, half of them of up to 100."""


@dataclass(frozen=True)
class Answer:
    """One choice of an engine.

    Attributes:
        logprobs: Of its tokens.
        leads: By how much each token's logprob is above the next likeliest's.
    """

    token_ids: list[int]
    logprobs: list[float]
    leads: list[float]

    @classmethod
    def of(cls, choice: dict[str, Any]) -> Self:
        """From a completion's JSON."""
        told = choice["logprobs"]
        likeliest = [sorted(each.values(), reverse=True) for each in told["top_logprobs"]]
        leads = [first - second for first, second, *_ in likeliest]
        return cls(choice["token_ids"], told["token_logprobs"], leads)


class ReferenceProcess:
    """One `python -m transload_engine --model`; a context manager.

    Attributes:
        url: Of its API.
        replay_endpoint: Where its events are asked for.
    """

    def __init__(self, model: Path, log: Path, *options: str) -> None:
        """Starts it at once, and blocks until it serves.

        Args:
            model: A checkpoint's folder.
            log: Where its standard error goes.
            *options: Further ones of its command line.

        Raises:
            EngineFailedError: It ended first.
        """
        command = [sys.executable, "-m", "transload_engine", *_arguments(model), *options]
        libc = ctypes.CDLL(None)
        with log.open("wb") as output:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=output,
                env=os.environ | _ENVIRONMENT,
                start_new_session=True,
                preexec_fn=lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM),
            )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.stop()
            raise EngineFailedError(f"the reference engine ended:\n{log.read_text()[-2000:]}")
        said = json.loads(line)
        self.url: str = said["url"]
        self.replay_endpoint: str = said["kv_event_sources"]["0"]["replay_endpoint"]

    def __enter__(self) -> Self:
        """Nothing more to start."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Stops it."""
        self.stop()

    def stop(self) -> None:
        """Ends it; blocks until it is gone."""
        self._process.terminate()
        try:
            self._process.communicate(timeout=STOP_GRACE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()


@contextlib.asynccontextmanager
async def serve_here(model: Path, *options: str) -> AsyncIterator[httpx.AsyncClient]:
    """An engine as the command line makes it, in this process, and a client of it."""
    loaded = load(model_parser().parse_args([*_arguments(model), *options]))
    async with (
        running(loaded) as (engine,),
        httpx.AsyncClient(
            base_url=engine.url,
            trust_env=False,
            timeout=REQUEST_S,
            limits=httpx.Limits(max_connections=NUM_PROMPTS),
        ) as client,
    ):
        yield client


def _arguments(model: Path) -> list[str]:
    """A command line; options behind these win."""
    return [
        *("--model", str(model), "--served-model-name", MODEL_NAME, "--port", "0"),
        *("--block-size", str(BLOCK_TOKENS), "--num-gpu-blocks-override", str(NUM_BLOCKS)),
        *("--max-model-len", "2048"),
    ]


def body(prompt: Sequence[int] | Sequence[Sequence[int]], **changes: Any) -> dict[str, Any]:
    """Of a greedy completion of one prompt or of several."""
    return {**_GREEDY, "prompt": prompt, **changes}


def ask(
    url: str, prompt: Sequence[int] | Sequence[Sequence[int]], **changes: Any
) -> dict[str, Any]:
    """The JSON of a completion, which must come."""
    asked = body(prompt, **changes)
    answer = httpx.post(f"{url}/v1/completions", json=asked, timeout=REQUEST_S)
    assert answer.status_code == 200, answer.text
    said: dict[str, Any] = answer.json()
    return said


def ask_together(url: str, prompts: Sequence[Sequence[int]], **changes: Any) -> list[Answer]:
    """The answers to the prompts of one request, which are computed in the same steps."""
    choices = ask(url, prompts, **changes)["choices"]
    return [Answer.of(each) for each in sorted(choices, key=lambda choice: int(choice["index"]))]


def differences(
    ours: Iterable[Answer], theirs: Iterable[Answer], numbers: Iterable[int] = range(NUM_PROMPTS)
) -> list[str]:
    """Where answers to the same prompts part, and whether that is for a tie."""
    found = []
    for number, our, their in zip(numbers, ours, theirs, strict=True):
        if our.token_ids == their.token_ids:
            continue
        at = next(
            place
            for place, tokens in enumerate(zip(our.token_ids, their.token_ids, strict=True))
            if tokens[0] != tokens[1]
        )
        kind = "a tie" if our.leads[at] < TIE else "no tie"
        found.append(
            f"prompt {number} of {len(PROMPTS[number])} tokens, token {at}: {our.token_ids[at]} "
            f"for {their.token_ids[at]}, {kind}: ahead by {our.leads[at]:.1e}"
        )
    return found


def events_since(endpoint: str, first_block: Sequence[int]) -> list[list[Event]]:
    """What a publisher said step by step, from the step that stored this block, as routers read it.

    Raises:
        zmq.Again: It does not answer.
    """
    with zmq.Context() as context, context.socket(zmq.DEALER) as dealer:
        dealer.setsockopt(zmq.LINGER, 0)
        dealer.setsockopt(zmq.RCVTIMEO, _REPLAY_MS)
        dealer.connect(endpoint)
        dealer.send_multipart([b"", bytes(8)])
        steps: list[list[Event]] = []
        while True:
            _, _, sequence, payload = dealer.recv_multipart()
            if sequence == _REPLAY_END:
                return steps
            batch = decode_batch(payload)
            assert batch.num_skipped == 0
            if steps or any(_begins(event, first_block) for event in batch.events):
                steps.append(batch.events)


def _begins(event: Event, first_block: Sequence[int]) -> bool:
    if not isinstance(event, Stored) or event.parent_block_hash is not None:
        return False
    return event.token_ids[: len(first_block)] == list(first_block)
