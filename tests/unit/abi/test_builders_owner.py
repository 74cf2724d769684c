"""Which part of the model a rank holds."""

from __future__ import annotations

from typing import Any

import pytest

from transload_abi.builders.vllm_owner import Rank, owner_of
from transload_abi.builders.vllm_read import read_spec
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.types import Owner, TokenSlice

FULL: dict[str, Any] = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 2,
    "head_size": 32,
    "dtype": "bfloat16",
}
LATENT = FULL | {
    "class": "MLAAttentionSpec",
    "num_kv_heads": 1,
    "head_size": 576,
    "max_tp_shards": 1,
}
STATE: dict[str, Any] = {
    "class": "MambaSpec",
    "block_size": 64,
    "shapes": [[3], [4]],
    "dtypes": ["bfloat16", "bfloat16"],
}


def owner(spec: dict[str, Any], has_heads: bool = True, **rank: int) -> Owner:
    return owner_of(read_spec(spec), Rank(**rank), has_heads)


def test_one_rank_holds_everything() -> None:
    assert owner(FULL) == Owner(heads=(0, 2, 2))
    assert owner(LATENT, has_heads=False) == Owner()
    assert owner(STATE) == Owner()


@pytest.mark.parametrize(("rank", "heads"), [(0, (0, 2, 8)), (1, (2, 4, 8)), (3, (6, 8, 8))])
def test_heads_are_split_in_order(rank: int, heads: tuple[int, int, int]) -> None:
    found = owner(FULL, tp_rank=rank, tp_size=4, total_num_kv_heads=8)
    assert found == Owner(heads=heads)
    assert owner(FULL, tp_rank=rank, tp_size=4) == found


@pytest.mark.parametrize(("rank", "head", "ordinal"), [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1)])
def test_consecutive_ranks_hold_the_same_head(rank: int, head: int, ordinal: int) -> None:
    one = FULL | {"num_kv_heads": 1}
    found = owner(one, tp_rank=rank, tp_size=4, total_num_kv_heads=2)
    assert found == Owner(heads=(head, head + 1, 2), replica=(ordinal, 2))


def test_more_shards_than_the_cache_has_are_replicas() -> None:
    spec = FULL | {"num_kv_heads": 4, "max_tp_shards": 2}
    assert owner(spec, tp_rank=3, tp_size=4, total_num_kv_heads=8) == Owner(
        heads=(4, 8, 8), replica=(1, 2)
    )


def test_every_rank_holds_all_latents() -> None:
    found = owner(LATENT, has_heads=False, tp_rank=2, tp_size=4)
    assert found == Owner(replica=(2, 4))


def test_a_state_is_held_whole_or_not_described() -> None:
    with pytest.raises(UnknownPart, match="tp_replicated: a state that 2 ranks split"):
        owner(STATE, tp_rank=1, tp_size=2)
    assert owner(STATE | {"tp_replicated": True}, tp_rank=1, tp_size=2) == Owner(replica=(1, 2))


@pytest.mark.parametrize(
    ("rank", "tokens", "replica"), [(0, 0, (0, 2)), (1, 1, (0, 2)), (2, 0, (1, 2)), (3, 1, (1, 2))]
)
def test_ranks_with_the_same_latents_share_out_tokens(
    rank: int, tokens: int, replica: tuple[int, int]
) -> None:
    found = owner(LATENT, has_heads=False, tp_rank=rank, tp_size=4, dcp_size=2, interleave=8)
    assert found == Owner(tokens=TokenSlice(rank=tokens, size=2, interleave=8), replica=replica)


def test_ranks_with_the_same_heads_share_out_tokens() -> None:
    one = FULL | {"num_kv_heads": 1}
    found = owner(one, tp_rank=3, tp_size=4, total_num_kv_heads=2, dcp_size=2)
    assert found == Owner(heads=(1, 2, 2), tokens=TokenSlice(rank=1, size=2))


def test_prefill_ranks_share_out_tokens_above_decode_ranks() -> None:
    found = owner(LATENT, has_heads=False, tp_rank=1, tp_size=2, dcp_size=2, pcp_rank=1, pcp_size=2)
    assert found.tokens == TokenSlice(rank=3, size=4)


def test_a_cache_that_is_not_shared_out_is_held_by_all() -> None:
    spec = LATENT | {"dcp_sharded": False}
    found = owner(spec, has_heads=False, tp_rank=3, tp_size=4, dcp_size=2)
    assert found == Owner(replica=(3, 4))


@pytest.mark.parametrize(
    ("rank", "message"),
    [
        ({"tp_rank": 4, "tp_size": 4}, "tp_rank: rank 4 of 4"),
        ({"tp_rank": -1}, "tp_rank: rank -1 of 1"),
        ({"tp_size": 3, "total_num_kv_heads": 8}, "num_kv_heads: a rank of 3 has 2 of 8 heads"),
        ({"tp_size": 2, "total_num_kv_heads": 8}, "num_kv_heads: a rank of 2 has 2 of 8 heads"),
        ({"tp_size": 3, "total_num_kv_heads": 2}, "tp_size: 2 shards do not divide 3 ranks"),
        ({"tp_size": 2, "dcp_size": 2}, "dcp_size: 1 ranks with the same heads cannot"),
    ],
)
def test_ranks_that_do_not_divide_contradict(rank: dict[str, int], message: str) -> None:
    with pytest.raises(Contradiction, match=message):
        owner(FULL, True, **rank)
