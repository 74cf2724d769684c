"""Records what vLLM's own cache manager announces, and what it would find, in one process.

No model and no device: the scheduler's `KVCacheManager` alone, driven by random requests. Runs
with the engine's Python::

    python tools/record_cache.py > tests/protocol/vectors/vllm-0.32.0/cache-hits.jsonl

A line is `{"cache": name, "groups": number, "texts": [...]}` where a new cache begins,
`{"events": hex}` with a batch as the engine publishes it, or
`{"probe": [lora, salt, text, length], "hit": tokens}` with what a request for that many tokens of
that text would have found then.
"""

import importlib
import json
import random
import sys
from typing import Any, NamedTuple

import msgspec

torch: Any = importlib.import_module("torch")
events: Any = importlib.import_module("vllm.distributed.kv_events")
hashing: Any = importlib.import_module("vllm.utils.hashing")
lora: Any = importlib.import_module("vllm.lora.request")
sampling: Any = importlib.import_module("vllm.sampling_params")
managers: Any = importlib.import_module("vllm.v1.core.kv_cache_manager")
cache_utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
specs: Any = importlib.import_module("vllm.v1.kv_cache_interface")
requests: Any = importlib.import_module("vllm.v1.request")

_SHAPE = {"num_kv_heads": 1, "head_size": 1, "dtype": torch.float32}
_LORAS = {
    "x": lora.LoRARequest("x", 1, "/adapters/x"),
    "y": lora.LoRARequest("y", 2, "/adapters/y"),
}


def full(block_size: int) -> Any:
    """Layers that attend to everything."""
    return specs.FullAttentionSpec(block_size=block_size, **_SHAPE)


def window(block_size: int, tokens: int) -> Any:
    """Layers that attend to so many tokens."""
    return specs.SlidingWindowSpec(block_size=block_size, sliding_window=tokens, **_SHAPE)


def mamba(block_size: int, mode: str = "none") -> Any:
    """Layers with a state instead of a cache."""
    return specs.MambaSpec(
        block_size=block_size, shapes=((1,),), dtypes=(torch.float32,), mamba_cache_mode=mode
    )


class Kind(NamedTuple):
    """A cache's shape.

    Attributes:
        step: Tokens between the ends of hits: the least common multiple of block sizes.
        retention: Tokens between checkpoints of window groups, where they keep fewer than all.
    """

    name: str
    groups: list[Any]
    step: int
    hash_size: int
    num_blocks: int
    retention: int | None = None


CACHES = [
    Kind("full", [full(4)], 4, 4, 14),
    Kind("full-one-token", [full(1)], 1, 1, 30),
    Kind("window", [window(4, 9)], 4, 4, 14),
    Kind("full+window", [full(4), window(4, 10)], 4, 4, 24),
    Kind("window+full+window", [window(4, 6), full(4), window(4, 17)], 4, 4, 34),
    Kind("full+window-halves", [full(8), window(4, 10)], 8, 4, 26),
    Kind("full-halves+window", [full(4), window(8, 12)], 8, 4, 26),
    Kind("full+mamba", [full(4), mamba(4)], 4, 4, 24),
    Kind("mamba+full", [mamba(8), full(8)], 8, 8, 20),
    Kind("window+full-sparse", [window(4, 5), full(4)], 4, 4, 30, 12),
    Kind("full+window-sparse", [full(8), window(4, 5)], 8, 4, 30, 16),
    Kind("full+mamba-align", [full(8), mamba(8, "align")], 8, 4, 30),
]


def write(entry: dict[str, Any]) -> None:
    """A line."""
    sys.stdout.write(json.dumps(entry) + "\n")


class Cache:
    """One manager, and the requests that run on it."""

    def __init__(self, seed: int, kind: Kind) -> None:
        self.random = random.Random(seed)
        self.hasher = cache_utils.get_request_block_hasher(kind.hash_size, hashing.sha256)
        config = specs.KVCacheConfig(
            num_blocks=kind.num_blocks,
            kv_cache_tensors=[],
            prefix_cache_retention_interval=kind.retention,
            kv_cache_groups=[
                specs.KVCacheGroupSpec([f"layer{i}"], one) for i, one in enumerate(kind.groups)
            ],
        )
        self.block_size = kind.step
        self.manager = managers.KVCacheManager(
            config,
            max_model_len=256,
            scheduler_block_size=kind.step,
            hash_block_size=kind.hash_size,
            enable_caching=True,
            enable_kv_cache_events=True,
        )
        self.running: list[Any] = []
        self.num_requests = 0
        trunk = [self.random.randrange(100) for _ in range(40)]
        self.texts = [
            trunk[:cut] + [self.random.randrange(100) for _ in range(40 - cut)]
            for cut in (0, 6, 9, 16, 20, 40)
        ]
        write({"cache": kind.name, "groups": len(kind.groups), "texts": self.texts})

    def request(self) -> Any:
        """Any prompt: the beginning of a text, sometimes with an adapter or a salt."""
        choose = self.random.choice
        self.text, length = self.random.randrange(len(self.texts)), self.random.randint(2, 36)
        tokens = self.texts[self.text][:length]
        self.num_requests += 1
        return requests.Request(
            request_id=str(self.num_requests),
            prompt_token_ids=tokens,
            sampling_params=sampling.SamplingParams(max_tokens=8),
            pooling_params=None,
            lora_request=_LORAS[choose("xy")] if self.random.random() < 0.15 else None,
            cache_salt="x" if self.random.random() < 0.15 else None,
            block_hasher=self.hasher,
        )

    def step(self) -> None:
        """Reset, admit, go on, end, at random; write the events, and what would be found now."""
        act = self.random.random()
        if act < 0.02 and self.running == []:
            self.manager.reset_prefix_cache()
        elif act < 0.45 and len(self.running) < 3:
            self.admit()
        for request in list(self.running):
            if request.num_computed_tokens >= request.num_tokens + 3 or self.random.random() < 0.15:
                self.running.remove(request)
                self.manager.free(request)
            else:
                self.go_on(request)
        announced = self.manager.take_events()
        if announced:
            batch = events.KVEventBatch(ts=float(self.num_requests), events=announced)
            write({"events": msgspec.msgpack.encode(batch).hex()})
        for _ in range(4):
            self.probe()

    def admit(self) -> None:
        """Give a request its blocks, if there is room."""
        request = self.request()
        blocks, num_hit, _ = self.manager.get_computed_blocks(request)
        # Some come with blocks from elsewhere, as a decode engine's do.
        num_loaded = 0
        if self.random.random() < 0.3:
            num_loaded = (request.num_tokens - 1 - num_hit) // self.block_size * self.block_size
        num_new = min(request.num_tokens - num_hit - num_loaded, self.random.choice([4, 8, 12, 40]))
        if (
            self.manager.allocate_slots(
                request, num_new, num_hit, blocks, num_external_computed_tokens=num_loaded
            )
            is not None
        ):
            request.num_computed_tokens = num_hit + num_loaded + num_new
            self.running.append(request)

    def go_on(self, request: Any) -> None:
        """Compute some more of it; end it where there is no room."""
        left = request.num_tokens - request.num_computed_tokens
        if left == 0:
            request.append_output_token_ids([self.random.randrange(100)])
            left = 1
        num_new = min(left, self.random.choice([4, 8, 40]))
        if self.manager.allocate_slots(request, num_new) is None:
            self.running.remove(request)
            self.manager.free(request)
        else:
            request.num_computed_tokens += num_new

    def probe(self) -> None:
        """What a request would find now."""
        request = self.request()
        _, num_hit, _ = self.manager.get_computed_blocks(request)
        adapter = request.lora_request.lora_name if request.lora_request else None
        asked = [adapter, request.cache_salt, self.text, request.num_tokens]
        write({"probe": asked, "hit": num_hit})


def record(num_steps: int, first_seed: int, num_seeds: int) -> None:
    """So many steps with each cache and seed."""
    cache_utils.init_none_hash(hashing.sha256)
    for seed in range(first_seed, first_seed + num_seeds):
        for kind in CACHES:
            one = Cache(seed, kind)
            for _ in range(num_steps):
                one.step()


if __name__ == "__main__":
    record(*(int(number) for number in sys.argv[1:4] or ("30", "0", "1")))
