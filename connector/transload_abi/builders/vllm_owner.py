"""Which part of the model a rank of vLLM holds: heads, replicas, and tokens."""

from __future__ import annotations

import msgspec

from transload_abi.builders.vllm_spec import Attention, MambaSpec, Spec
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.types import Owner, TokenSlice


class Rank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank's place in its parallel groups.

    Attributes:
        tp_rank, tp_size: Tensor parallelism.
        total_num_kv_heads: Of the whole model; 0: as many as the rank has, times the ranks.
        dcp_size: Decode context parallelism: so many consecutive tensor-parallel ranks that hold
            the same heads share out their tokens.
        pcp_rank, pcp_size: Prefill context parallelism: shares out tokens above that.
        interleave: `cp_kv_cache_interleave_size`: consecutive tokens that one of them takes.
    """

    tp_rank: int = 0
    tp_size: int = 1
    total_num_kv_heads: int = 0
    dcp_size: int = 1
    pcp_rank: int = 0
    pcp_size: int = 1
    interleave: int = 1


def owner_of(
    spec: Spec, rank: Rank, has_heads: bool, state_heads: tuple[int, int] = (0, 0)
) -> Owner:
    """The slice of one specification that a rank holds.

    Where there are more ranks than heads, consecutive ranks hold the same head.

    Args:
        spec: What each of the rank's layers holds.
        rank: The rank.
        has_heads: Whether elements belong to heads: not those of latents and flattened states.
        state_heads: Of a recurrent state by head: heads of the rank, and of the model, 0: as many
            as the rank has, times the ranks.

    Raises:
        UnknownPart: Ranks split a recurrent state, of which a descriptor cannot say a part.
        Contradiction: The ranks do not divide into heads and replicas.
    """
    if not 0 <= rank.tp_rank < rank.tp_size:
        raise Contradiction(f"rank {rank.tp_rank} of {rank.tp_size}", "tp_rank")
    if isinstance(spec, MambaSpec):
        if state_heads[0]:
            return _with_state_heads(spec, rank, *state_heads)
        if rank.tp_size > 1 and not spec.tp_replicated:
            raise UnknownPart(f"a state that {rank.tp_size} ranks split", "tp_replicated")
        return Owner(replica=(rank.tp_rank, rank.tp_size))
    total, shards = _shards(spec, rank, has_heads)
    replicas, rest = divmod(rank.tp_size, shards)
    if rest:
        raise Contradiction(f"{shards} shards do not divide {rank.tp_size} ranks", "tp_size")
    each, rest = divmod(total, shards)
    if rest or (has_heads and each != spec.num_kv_heads):
        raise Contradiction(
            f"a rank of {rank.tp_size} has {spec.num_kv_heads} of {total} heads, not {total}/"
            f"{shards}",
            "num_kv_heads",
        )
    first = rank.tp_rank // replicas * each
    return _with_tokens(spec, rank, (first, first + each, total), replicas)


def _with_state_heads(spec: MambaSpec, rank: Rank, heads: int, total: int) -> Owner:
    """A recurrent layer's heads; where there are more ranks than those, consecutive ranks share."""
    if spec.tp_replicated:
        return Owner(heads=(0, heads, heads), replica=(rank.tp_rank, rank.tp_size))
    total = total or heads * rank.tp_size
    shards = min(total, rank.tp_size)
    replicas, rest = divmod(rank.tp_size, shards)
    if rest or heads * shards != total:
        raise Contradiction(
            f"a rank of {rank.tp_size} has {heads} of {total} heads", "interior.state_parts"
        )
    first = rank.tp_rank // replicas * heads
    return Owner(heads=(first, first + heads, total), replica=(rank.tp_rank % replicas, replicas))


def _shards(spec: Attention, rank: Rank, has_heads: bool) -> tuple[int, int]:
    """Heads of the whole model, and parts into which tensor parallelism cuts them."""
    if not has_heads:
        return 1, 1
    total = rank.total_num_kv_heads or spec.num_kv_heads * rank.tp_size
    shards = min(total, rank.tp_size)
    return total, min(shards, spec.max_tp_shards or shards)


def _with_tokens(spec: Attention, rank: Rank, heads: tuple[int, int, int], replicas: int) -> Owner:
    """Shares out the tokens among those that hold the same heads."""
    replica = rank.tp_rank % replicas
    slices = rank.dcp_size * rank.pcp_size if spec.dcp_sharded else 1
    if slices == 1:
        return Owner(heads=heads, replica=(replica, replicas))
    if replicas % rank.dcp_size:
        raise Contradiction(
            f"{replicas} ranks with the same heads cannot share out tokens over {rank.dcp_size}",
            "dcp_size",
        )
    tokens = TokenSlice(
        rank=rank.pcp_rank * rank.dcp_size + rank.tp_rank % rank.dcp_size,
        size=slices,
        interleave=rank.interleave,
    )
    return Owner(
        heads=heads,
        tokens=tokens,
        replica=(replica // rank.dcp_size, replicas // rank.dcp_size),
    )
