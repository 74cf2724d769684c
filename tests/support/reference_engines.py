"""Reference engines on loopback with a tiny checkpoint, and somebody who asks them."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import httpx
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace

from support.router_server import Metrics
from support.tiny_models import VOCABULARY, write_checkpoint
from transload_abi.wire.deadlines import ReaderDeadlines
from transload_engine.core.runner import Runner
from transload_engine.server.kv_fetch import KvMemory
from transload_engine.server.kv_sockets import SocketTransfer
from transload_engine.server.model_command import load, model_parser, running

MODEL: Final = "tiny"
COMPLETIONS: Final = "/v1/completions"
HANDS_OFF: Final = {"do_remote_decode": True}

Handoff = dict[str, Any]


def write_model(folder: Path, family: str = "llama") -> Path:
    """A checkpoint with a tokenizer of one word a token."""
    write_checkpoint(family, folder)
    words = {f"w{number}": number for number in range(VOCABULARY)}
    fast = Tokenizer(WordLevel(words, unk_token="w0"))
    fast.pre_tokenizer = Whitespace()
    fast.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "w2", "chat_template": "{{ messages[0].content }} w5"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


class Asked:
    """An engine, in this process or another, as its clients see it.

    Attributes:
        memory: Its cache, of one in this process.
    """

    def __init__(self, url: str, client: httpx.AsyncClient, memory: KvMemory | None = None) -> None:
        self.url = url
        self.client = client
        self.memory = memory

    async def complete(self, prompt: Sequence[int], **more: Any) -> httpx.Response:
        body = {
            "model": MODEL,
            "prompt": list(prompt),
            "max_tokens": 8,
            "temperature": 0,
            "ignore_eos": True,
            "return_token_ids": True,
            **more,
        }
        return await self.client.post(COMPLETIONS, json=body)

    async def tokens(self, prompt: Sequence[int], **more: Any) -> list[int]:
        """Of an answer, which must come."""
        answer = await self.complete(prompt, **more)
        assert answer.status_code == 200, answer.text
        return list(answer.json()["choices"][0]["token_ids"])

    async def prefill(self, prompt: Sequence[int], **more: Any) -> Handoff:
        """The handoff of a prompt."""
        params = {**HANDS_OFF, **more}
        answer = await self.complete(prompt, max_tokens=1, kv_transfer_params=params)
        assert answer.status_code == 200, answer.text
        handoff: Handoff = answer.json()["kv_transfer_params"]
        return handoff

    async def metrics(self) -> Metrics:
        return Metrics((await self.client.get("/metrics")).text)

    async def usage(self) -> float:
        return (await self.metrics()).value("vllm:kv_cache_usage_perc")

    async def is_empty(self) -> bool:
        """Whether nobody holds a block, and nobody waits."""
        found = await self.metrics()
        names = ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc")
        return not any(found.value(f"vllm:{name}") for name in names)

    async def failures(self) -> dict[tuple[str, str], float]:
        """Loads that failed, by reason and path."""
        found = (await self.metrics()).nonzero("transload_kv_load_failures_total")
        return {(labels["reason"], labels["path"]): count for labels, count in found}

    async def num_loaded_tokens(self) -> float:
        return (await self.metrics()).value("transload_kv_loaded_tokens_total")


async def settle(*engines: Asked, within_s: float = 10.0) -> None:
    """All blocks come back."""
    async with asyncio.timeout(within_s):
        for engine in engines:
            while not await engine.is_empty():
                pass


@contextlib.asynccontextmanager
async def serve_reference(
    folder: Path,
    *arguments: str,
    deadlines: ReaderDeadlines | None = None,
    wrap: Callable[[Runner], Runner] = lambda runner: runner,
) -> AsyncIterator[Asked]:
    """An engine as the command line makes it, in this process.

    Args:
        folder: Of a model.
        *arguments: Of the command line.
        deadlines: For other engines, which the command line does not have.
        wrap: Makes the runner that is used of the model's.
    """
    given = ["--model", str(folder), "--served-model-name", MODEL, "--port", "0", *arguments]
    loaded = load(model_parser().parse_args(given))
    loaded = replace(loaded, runner=wrap(loaded.runner))
    assert isinstance(loaded.connect, partial)
    memory, settings, name = loaded.connect.args
    if deadlines is not None:
        quick = replace(settings, reader_deadlines=deadlines)
        loaded = replace(loaded, connect=partial(SocketTransfer, memory, quick, name))
    async with (
        running(loaded) as (engine,),
        httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=30) as client,
    ):
        yield Asked(engine.url, client, memory)
