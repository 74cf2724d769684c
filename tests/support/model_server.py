"""A model's engine on loopback, its tokens from a `RecordingRunner`, and somebody who asks it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx

from support.recording_runner import VOCABULARY, RecordingRunner
from support.reference_transfer import FakeTransfer
from transload_abi.wire.ledger import Freed
from transload_engine.core.settings import CoreSettings
from transload_engine.server.engine import EngineSpec
from transload_engine.server.model_command import LoadedModel, running
from transload_engine.server.model_engine import ModelEngine
from transload_engine.server.sampling import ModelDefaults
from transload_engine.server.tokens import ByteTokenizer, Tokenizer

PROMPT = [200 + place for place in range(9)]


class ModelServer:
    """See the module."""

    def __init__(
        self,
        engine: ModelEngine,
        runner: RecordingRunner,
        transfer: FakeTransfer,
        client: httpx.AsyncClient,
    ) -> None:
        self.engine = engine
        self.runner = runner
        self.transfer = transfer
        self.client = client

    async def complete(self, **body: Any) -> httpx.Response:
        asked = {"model": "tiny", "prompt": PROMPT, "max_tokens": 4, "temperature": 0, **body}
        return await self.client.post("/v1/completions", json=asked)

    async def chat(self, **body: Any) -> httpx.Response:
        messages = [{"role": "user", "content": "cargo"}]
        asked = {"messages": messages, "max_tokens": 4, "temperature": 0, **body}
        return await self.client.post("/v1/chat/completions", json=asked)


@contextlib.asynccontextmanager
async def serve_model(
    *,
    defaults: ModelDefaults | None = None,
    tokenizer: Tokenizer | None = None,
    vocab_size: int = VOCABULARY,
    **core: Any,
) -> AsyncIterator[ModelServer]:
    """Blocks of 4 tokens, 63 of them free, unless `core` says otherwise."""
    sizes = {"block_size": 4, "num_blocks": 64, "max_model_tokens": 200, **core}
    settings = CoreSettings(**sizes, schedules_async=False)
    transfers: list[FakeTransfer] = []

    def connect(generation: str, on_freed: Callable[[Freed], None]) -> FakeTransfer:
        transfers.append(FakeTransfer(generation, on_freed))
        return transfers[-1]

    runner = RecordingRunner(settings.block_size)
    loaded = LoadedModel(
        spec=EngineSpec(model="tiny", core=settings),
        runner=runner,
        connect=connect,
        vocab_size=vocab_size,
        defaults=defaults or ModelDefaults(),
        tokenizer=tokenizer or ByteTokenizer(),
    )
    async with (
        running(loaded) as (engine,),
        httpx.AsyncClient(base_url=engine.url, trust_env=False, timeout=10) as client,
    ):
        yield ModelServer(engine, runner, transfers[0], client)
