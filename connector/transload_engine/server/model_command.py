"""`python -m transload_engine --model PATH`: a model on this machine's CPU, until told to end.

Imports torch where a model is loaded, and not before.
"""

import argparse
import contextlib
import logging
import os
import secrets
from collections.abc import AsyncIterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Final

import zmq

from transload_abi import Descriptor
from transload_connector.transports.shared_memory import (
    NoSharedMemory,
    SharedPool,
    create_pool,
    remove_stale,
)
from transload_engine.core.hashes import NO_SEED, HashAlgorithm
from transload_engine.core.runner import Runner
from transload_engine.core.settings import CoreSettings
from transload_engine.server.engine import EngineSpec
from transload_engine.server.kv_options import add_kv_options, transfer_settings
from transload_engine.server.kv_transfer import Connect, KvTransport
from transload_engine.server.model_engine import ModelEngine
from transload_engine.server.options import add_options, event_ports
from transload_engine.server.sampling import ModelDefaults
from transload_engine.server.tokens import FolderTokenizer, Tokenizer

_log = logging.getLogger(__name__)

KV_DTYPES: Final = {
    "auto": "f32",
    "fp8": "e4m3",
    "bfloat16": "bf16",
    "float16": "f16",
    "float32": "f32",
}
"""Of the cache, by vLLM's names; `auto` is what the model is computed in."""

MAX_BATCH_TOKENS: Final = 2048
"""vLLM's default where the machine is none of the largest (`engine/arg_utils.py`)."""

REQUESTS_THAT_FIT: Final = 4
"""Of the greatest length, in a cache whose size nobody gave, if they fit in `CACHE_BYTES`."""

CACHE_BYTES: Final = 4 << 30
"""Of that cache at most; weights in f32 need room beside it."""


def model_parser() -> argparse.ArgumentParser:
    """The command line; options that vLLM has are called as there."""
    made = argparse.ArgumentParser(
        prog="python -m transload_engine",
        description="One engine with a model. For simulated ones see --simulate --help.",
    )
    add = made.add_argument
    add("--model", type=Path, required=True, help="a checkpoint's folder")
    add("--served-model-name", help="default: the folder, as given")
    add("--port", type=int, default=8000)
    add_options(made, HashAlgorithm.SHA256_CBOR)
    add("--max-model-len", type=int, help="default: the model's")
    add("--num-gpu-blocks-override", type=int, help="default: room for a few requests")
    add("--max-num-batched-tokens", type=int, default=MAX_BATCH_TOKENS)
    add("--kv-layout", default="LBHNC", help="how the cache lies in memory")
    add("--kv-dtype", choices=list(KV_DTYPES), default="auto")
    add("--seed", type=int, help="of the draws of requests that bring none")
    add_kv_options(made)
    return made


@dataclass(frozen=True)
class LoadedModel:
    """What an engine serves.

    Attributes:
        connect: The way to other engines' blocks, and for theirs to these.
        vocab_size: Ids that it reads and chooses are below this.
    """

    spec: EngineSpec
    runner: Runner
    connect: Connect
    vocab_size: int
    defaults: ModelDefaults
    tokenizer: Tokenizer


def load(given: argparse.Namespace) -> LoadedModel:
    """What the command line describes, read from its folder.

    Raises:
        ValueError: It describes nothing that can run, or what it needs is not installed.
        OSError: A file cannot be read.
    """
    try:
        from transload_engine.model.kv_cache import PagedCache
        from transload_engine.model.llama import Llama
        from transload_engine.model.placements import KvSettings, ModelName, make_descriptor
        from transload_engine.model.runner import TorchRunner
        from transload_engine.server.kv_fetch import KvMemory
        from transload_engine.server.kv_sockets import SocketTransfer
    except ModuleNotFoundError as error:
        raise ValueError(f"--model needs the packages of transload[engine]: {error}") from error

    transfers = transfer_settings(given)
    tokenizer = FolderTokenizer(given.tokenizer or given.model)
    model = Llama.load(given.model)
    name = given.served_model_name or str(given.model)
    most = model.config.max_model_tokens
    if given.max_model_len is not None and not 0 < given.max_model_len <= most:
        raise ValueError(
            f"--max-model-len {given.max_model_len}: the model was made for {most} positions"
        )
    max_tokens = given.max_model_len or most
    small = KvSettings(given.kv_layout, given.block_size, 2, KV_DTYPES[given.kv_dtype])
    named = ModelName(name, weights=model.weights.digest)
    pools = make_descriptor(model.config, small, named).pools
    block_bytes = sum(pool.num_bytes for pool in pools) // small.num_blocks
    spec = _spec(given, name, max_tokens, _num_blocks(given, max_tokens, block_bytes))
    settings = replace(small, num_blocks=spec.core.num_blocks)
    descriptor = make_descriptor(model.config, settings, named)
    shared = _shared_pools(descriptor, name, transfers.transport)
    buffers = {pool: each.memory for pool, each in shared.items()}
    cache = PagedCache(descriptor, buffers or None)
    memory = KvMemory(cache.descriptor, cache.memory, shared)
    return LoadedModel(
        spec=spec,
        runner=TorchRunner(model, cache, given.seed),
        connect=partial(SocketTransfer, memory, transfers, name),
        vocab_size=model.config.vocab_size,
        defaults=ModelDefaults.read(given.model, model.config.eos_ids),
        tokenizer=tokenizer,
    )


def _shared_pools(
    descriptor: Descriptor, name: str, transport: KvTransport
) -> dict[str, SharedPool]:
    """Memory for the cache that other engines on this host may read; empty: there is none.

    Raises:
        ValueError: It was asked for, and there is not so much.
    """
    if transport is KvTransport.TCP:
        return {}
    remove_stale(name)
    start = secrets.token_hex(16)
    try:
        return {
            pool.id: create_pool(name, start, pool.id, pool.num_bytes) for pool in descriptor.pools
        }
    except NoSharedMemory as error:
        if transport is KvTransport.SHM:
            raise ValueError(f"--kv-transport shm: {error}") from error
        _log.warning("other engines read this one's blocks over TCP alone: %s", error)
        return {}


def _num_blocks(given: argparse.Namespace, max_model_tokens: int, block_bytes: int) -> int:
    if given.num_gpu_blocks_override is not None:
        return int(given.num_gpu_blocks_override)
    num_request_blocks: int = -(-max_model_tokens // given.block_size)
    return min(1 + REQUESTS_THAT_FIT * num_request_blocks, CACHE_BYTES // block_bytes)


def _spec(
    given: argparse.Namespace, name: str, max_model_tokens: int, num_blocks: int
) -> EngineSpec:
    core = CoreSettings(
        block_size=given.block_size,
        num_blocks=num_blocks,
        max_model_tokens=max_model_tokens,
        max_requests=given.max_num_seqs,
        max_batch_tokens=given.max_num_batched_tokens,
        schedules_async=False,
        caches_prefixes=given.enable_prefix_caching,
        fails_with_load=given.kv_load_failure_policy == "fail",
        has_events=given.events,
        has_int_names=given.event_hashes == "int",
        hash_algorithm=HashAlgorithm(given.prefix_caching_hash_algo),
        hash_seed=os.environ.get("PYTHONHASHSEED", NO_SEED),
    )
    return EngineSpec(
        host=given.host,
        port=given.port,
        model=name,
        core=core,
        ports=event_ports(given),
        reports_cached=given.enable_prompt_tokens_details,
    )


@contextlib.asynccontextmanager
async def running(loaded: LoadedModel) -> AsyncIterator[list[ModelEngine]]:
    """An engine that can be reached within the block."""
    with contextlib.ExitStack() as stack:
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        stack.callback(context.destroy, linger=0)
        engine = ModelEngine(
            loaded.spec,
            loaded.runner,
            loaded.connect,
            loaded.vocab_size,
            loaded.defaults,
            context,
            loaded.tokenizer,
        )
        try:
            await engine.start()
            yield [engine]
        finally:
            await engine.stop()
