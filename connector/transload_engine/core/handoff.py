"""Handoffs of the NIXL connector's shape: what the prefill engine says and the decode engine reads.

After vLLM 0.32.0's `vllm/distributed/kv_transfer/kv_connector/v1/nixl/pull_scheduler.py`. What
`kvwire/1` needs besides stands under a key of its own, which others pass on unread.
"""

import hashlib
import sys
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from transload_engine.core.blocks import Block

NEEDED = (
    "remote_block_ids",
    "remote_engine_id",
    "remote_request_id",
    "remote_host",
    "remote_port",
)
"""Fields without which a decode engine computes the prompt itself."""

WIRE: Final = "kvwire/1"
"""How blocks are read: `connector/WIRE.md`."""

OWN_KEY: Final = "transload"
"""Of `kv_transfer_params`: holds `wire`, `lease`, `generation`, `prompt`, and `readers` where there
are several."""


def prompt_digest(tokens: Sequence[int]) -> str:
    """What tells one prompt from another of its length: of its ids, 32 bits each, little-endian."""
    ids = array("I", tokens)
    if sys.byteorder == "big":
        ids.byteswap()
    return f"sha256:{hashlib.sha256(ids.tobytes()).hexdigest()}"


@dataclass(frozen=True)
class Handoff:
    """Where one prompt's blocks lie, and until they are read whose they are.

    Attributes:
        num_cached_tokens: What prefill found in its cache; None where it does not say.
        lease: Under which the blocks are held; empty where they are not read by `WIRE`.
        generation: Of the engine that holds them; likewise.
        prompt: `prompt_digest` of the tokens that they were computed from; likewise.
        num_readers: Engines that the blocks are held for.
    """

    engine_id: str
    request_id: str
    host: str
    port: int
    num_blocks: int
    num_cached_tokens: int | None = None
    lease: str = ""
    generation: str = ""
    prompt: str = ""
    num_readers: int = 1

    @property
    def speaks_wire(self) -> bool:
        """Whether the blocks are read by `WIRE`."""
        return bool(self.lease)

    @classmethod
    def read(cls, params: dict[str, Any]) -> "Handoff | None":
        """A request's `kv_transfer_params`; None if it asks for no load, or not for a whole one."""
        if not params.get("do_remote_prefill"):
            return None
        if not all(params.get(name) for name in NEEDED):
            return None
        groups, port = params["remote_block_ids"], params["remote_port"]
        if not isinstance(groups, list) or type(port) is not int:
            return None
        own = params.get(OWN_KEY)
        if not isinstance(own, dict) or own.get("wire") != WIRE:
            own = {}
        return cls(
            engine_id=str(params["remote_engine_id"]),
            request_id=str(params["remote_request_id"]),
            host=str(params["remote_host"]),
            port=port,
            num_blocks=len(groups[0]) if isinstance(groups[0], list) else len(groups),
            num_cached_tokens=params.get("remote_prefill_cached_tokens"),
            lease=str(own.get("lease", "")),
            generation=str(own.get("generation", "")),
            prompt=str(own.get("prompt", "")),
            num_readers=own.get("readers", 1),
        )


@dataclass(frozen=True)
class Origin:
    """Who a prefill engine (one rank of it) is to others."""

    engine_id: str
    host: str
    port: int

    def params(
        self, request_id: str, block_ids: list[int], num_tokens: int, num_cached: int
    ) -> dict[str, Any]:
        """The `kv_transfer_params` of an answer, in vLLM's order."""
        return {
            "do_remote_prefill": True,
            "do_remote_decode": False,
            "remote_block_ids": [block_ids],
            "remote_engine_id": self.engine_id,
            "remote_request_id": request_id,
            "remote_host": self.host,
            "remote_port": self.port,
            "tp_size": 1,
            "dcp_size": 1,
            "pp_size": 1,
            "remote_num_tokens": num_tokens,
            "remote_blocks_expiry_time": None,
            "transfer_mode": "pull",
            "remote_prefill_cached_tokens": num_cached,
        }


@dataclass(frozen=True, slots=True)
class Grant:
    """Blocks that are to be held for others, before anybody is told of the handoff.

    Attributes:
        handoff: Its name.
        lease: Of this one grant.
        num_tokens: That the blocks hold.
        num_readers: Who are to come.
        prompt: `prompt_digest` of these tokens.
    """

    handoff: str
    lease: str
    block_ids: list[int]
    num_tokens: int
    num_readers: int
    prompt: str

    def params(self, generation: str) -> dict[str, Any]:
        """What an answer carries of it besides NIXL's names."""
        own: dict[str, Any] = {
            "wire": WIRE,
            "lease": self.lease,
            "generation": generation,
            "prompt": self.prompt,
        }
        if self.num_readers > 1:
            own["readers"] = self.num_readers
        return {OWN_KEY: own}


@dataclass(eq=False)
class Lease:
    """Blocks that a finished prefill holds for whoever decodes.

    Attributes:
        tokens: What the blocks were computed from.
    """

    blocks: list[Block]
    tokens: Sequence[int]
    expires_s: float


@dataclass
class Leases:
    """What one engine holds for others, by request.

    Attributes:
        num_expired: Leases that nobody took in time.
        num_late: Readers that said they were done with what was not held (any more).
    """

    lease_s: float
    held: dict[str, Lease] = field(default_factory=dict)
    num_expired: int = 0
    num_late: int = 0

    def grant(
        self, request_id: str, blocks: list[Block], tokens: Sequence[int], now: float
    ) -> None:
        """Hold blocks, which the caller no longer releases."""
        self.held[request_id] = Lease(blocks, tokens, now + self.lease_s)

    def read(self, request_id: str, now: float) -> Sequence[int] | None:
        """The tokens behind the blocks, renewing the lease; None for what is not held."""
        lease = self.held.get(request_id)
        if lease is None:
            return None
        lease.expires_s = max(lease.expires_s, now + self.lease_s)
        return lease.tokens

    def end(self, request_id: str) -> list[Block] | None:
        """A reader is done, or will never come: the blocks to release in that order, or None.

        None counts as late. vLLM's decode engine says the same in both cases, so they are not told
        apart.
        """
        lease = self.held.pop(request_id, None)
        if lease is None:
            self.num_late += 1
            return None
        return lease.blocks[::-1]

    def expire(self, now: float) -> list[Block]:
        """The blocks of leases that have run out, to be released."""
        ended = [key for key, lease in self.held.items() if lease.expires_s <= now]
        self.num_expired += len(ended)
        return [block for key in ended for block in reversed(self.held.pop(key).blocks)]

    @property
    def next_expiry_s(self) -> float | None:
        """When the first lease runs out, None if none is held."""
        return min((lease.expires_s for lease in self.held.values()), default=None)
