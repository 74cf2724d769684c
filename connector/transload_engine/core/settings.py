"""What one engine's core is told: sizes, policies, times."""

from dataclasses import dataclass, field

from transload_engine.core.hashes import NO_SEED, HashAlgorithm
from transload_engine.core.timing import Profile


@dataclass(frozen=True)
class CoreSettings:
    """Settings of one engine, the same for each of its ranks; vLLM's defaults where it has them.

    Attributes:
        num_blocks: Of each rank, the null block included.
        max_model_tokens: Prompt and answer together.
        max_requests: That are computed together (`--max-num-seqs`).
        max_batch_tokens: Of one step (`--max-num-batched-tokens`).
        schedules_async: Whether a step is composed before the one before has ended.
        caches_prefixes: Whether blocks can be hit at all.
        has_connector: Whether blocks can be handed to other engines and loaded from them.
        lease_s: How long blocks are kept for an engine that does not come (`kv_lease_duration`).
        fails_with_load: Whether a failed load fails its request (`kv_load_failure_policy`).
        mean_answer_tokens: One token in so many ends an answer that may end; 0 for none.
        has_events: Whether cache events are kept.
        has_int_names: Whether events name blocks by integers or by 32 bytes.
        hash_algorithm: How blocks are hashed (`--prefix-caching-hash-algo`).
        hash_seed: Of vLLM's recipes (PYTHONHASHSEED).
    """

    block_size: int = 16
    num_blocks: int = 4096
    max_model_tokens: int = 32768
    max_requests: int = 256
    max_batch_tokens: int = 8192
    schedules_async: bool = True
    caches_prefixes: bool = True
    has_connector: bool = True
    lease_s: float = 30.0
    fails_with_load: bool = True
    mean_answer_tokens: int = 0
    has_events: bool = True
    has_int_names: bool = True
    hash_algorithm: HashAlgorithm = HashAlgorithm.TRANSLOAD
    hash_seed: str = NO_SEED
    profile: Profile = field(default_factory=Profile)

    def __post_init__(self) -> None:
        """Refuse what no request could be served with.

        Raises:
            ValueError: The cache cannot hold one request of the greatest length, as in vLLM.
        """
        room = (self.num_blocks - 1) * self.block_size
        if room < self.max_model_tokens:
            raise ValueError(
                f"{self.num_blocks} blocks of {self.block_size} hold {room} tokens, fewer than one "
                f"request may have ({self.max_model_tokens}): more blocks, or fewer tokens"
            )
