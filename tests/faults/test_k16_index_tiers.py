"""K16: copies, tiers, groups and block sizes are kept apart, and a hit can really be loaded."""

import pytest

from transload_router.core.index.hits import Hit
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.events import (
    CPU,
    STORAGE,
    BlockHash,
    Cleared,
    Event,
    Removed,
    Stored,
)
from transload_router.core.prompt import Prompt, pack_tokens

ENGINE = ("p0", 0)
NOTHING = Hit(0, 0)
TOKENS = list(range(1, 2001))


def prompt(num_tokens: int) -> Prompt:
    return Prompt(Identity("m"), pack_tokens(TOKENS[:num_tokens]))


class Told:
    """An index with one owner, told events."""

    def __init__(self, *events: Event) -> None:
        self.index = Index()
        self.index.add_owner(ENGINE, "m", 0)
        self.tell(*events)

    def tell(self, *events: Event) -> "Told":
        for event in events:
            self.index.apply(ENGINE, 0, event)
        return self

    def hit(self, num_tokens: int) -> Hit:
        return self.index.match(prompt(num_tokens)).get(ENGINE, NOTHING)


def test_a_second_copy_is_still_a_hit() -> None:
    """B172, B174: two requests computed the same block at once, one copy was evicted."""
    block = Stored([7], None, TOKENS[:16], 16)
    told = Told(block, block, Removed([7]))
    assert told.hit(17) == Hit(16, 16)
    told.tell(Removed([7]))
    assert told.hit(17) == NOTHING
    told.tell(Removed([7]), block)
    assert told.hit(17) == Hit(16, 16)


def test_many_copies() -> None:
    told = Told(*[Stored([7], None, TOKENS[:16], 16)] * 5)
    for _ in range(4):
        told.tell(Removed([7]))
        assert told.hit(17) == Hit(16, 16)
    told.tell(Removed([7]))
    assert told.hit(17) == NOTHING


def test_the_engine_says_how_many_copies_are_left() -> None:
    """B146: where it does, it is right whatever was counted."""
    block = Stored([7, 8], None, TOKENS[:32], 16)
    told = Told(block, block, Removed([7, 8], num_remaining=[2, 0]))
    assert told.hit(33) == Hit(16, 16)
    told.tell(Removed([7]))
    assert told.hit(33) == Hit(16, 16)
    told.tell(Removed([7], num_remaining=[0]))
    assert told.hit(33) == NOTHING


def test_tiers_have_block_sizes_of_their_own() -> None:
    """B176: the CPU tier by 4, the GPU by 256, and the other way round."""
    told = Told(
        Stored([1], None, TOKENS[:256], 256),
        Stored([91 + n for n in range(72)], None, TOKENS[:288], 4, medium=CPU),
    )
    assert told.hit(289) == Hit(256, 288)
    assert told.hit(257) == Hit(256, 256)
    coarse = Told(
        Stored(list(range(4)), None, TOKENS[:16], 4),
        Stored([91], None, TOKENS[:256], 256, medium=CPU),
    )
    assert coarse.hit(273) == Hit(16, 256) or coarse.hit(600) == Hit(16, 256)
    assert coarse.hit(600) == Hit(16, 256)
    # Less than a CPU block is left beyond the GPU's: the connector does not look.
    assert coarse.hit(257) == Hit(16, 16)


def test_short_prompts_of_hybrid_models() -> None:
    """B177: blocks of 528 tokens and a prompt of 300 have nothing to say to each other."""
    told = Told(Stored([1], None, TOKENS[:528], 528))
    assert told.hit(300) == NOTHING
    assert told.hit(528) == NOTHING
    assert told.hit(529) == Hit(528, 528)


def test_blocks_larger_than_the_hash_granularity() -> None:
    """B178: hashes by 16, blocks of 64: the event says 64, and 64 is looked up."""
    told = Told(Stored([4, 8], None, TOKENS[:128], 64))
    assert told.hit(130) == Hit(128, 128)
    assert told.hit(127) == Hit(64, 64)


def test_an_entry_inside_a_block_is_not_a_block() -> None:
    """A partial block (`cache_partial_block`) does not change the group's block size."""
    told = Told(
        Stored([1], None, TOKENS[:16], 16),
        Stored([4], None, TOKENS[:64], 64),
        Stored([5], 4, TOKENS[64:80], 16),
    )
    assert told.hit(100) == Hit(64, 64)
    told.tell(Removed([1]), Removed([4]))
    assert told.hit(100) == NOTHING


def test_removal_touches_its_own_tier() -> None:
    """B180: GPU and CPU hold it, the GPU lets it go."""
    told = Told(
        Stored([1, 2], None, TOKENS[:32], 16),
        Stored([1, 2], None, TOKENS[:32], 16, medium=CPU),
        Removed([1, 2]),
    )
    assert told.hit(33) == Hit(0, 32)
    told.tell(Removed([2], medium=CPU))
    assert told.hit(33) == Hit(0, 16)


def test_lower_tiers_go_on_where_the_gpu_ends() -> None:
    told = Told(
        Stored([1, 2, 3, 4], None, TOKENS[:64], 16),
        # By names alone, after the GPU let two of them go.
        Removed([3, 4]),
        Stored([3], None, [], 0, medium=CPU),
        Stored([4], None, [], 0, medium=STORAGE),
    )
    assert told.hit(100) == Hit(32, 64)
    told.tell(Removed([3], medium=CPU))
    assert told.hit(100) == Hit(32, 32)


def test_a_block_behind_a_gap_of_the_gpu_does_not_count() -> None:
    """What the GPU holds beyond its own gap is not looked at by a connector."""
    told = Told(
        Stored([1, 2, 3], None, TOKENS[:48], 16),
        Stored([2], None, [], 0, medium=CPU),
        Removed([2]),
    )
    assert told.hit(100) == Hit(16, 32)


def test_an_unknown_medium_is_a_tier_of_its_own() -> None:
    told = Told(
        Stored([1], None, TOKENS[:16], 16),
        Stored([2], 1, TOKENS[16:32], 16, medium="NVM"),
        Removed([2], medium=CPU),
        Removed([2]),
    )
    assert told.hit(33) == Hit(16, 32)
    told.tell(Removed([2], medium="NVM"))
    assert told.hit(33) == Hit(16, 16)


def test_a_name_that_nobody_knows_is_counted() -> None:
    told = Told(Stored([1], None, [], 0, medium=CPU), Stored([3], 2, TOKENS[:16], 16))
    assert told.hit(33) == NOTHING
    stats = told.index.stats(ENGINE)
    assert stats is not None
    assert (stats.num_orphaned, stats.num_blocks) == (2, {})


def test_all_tiers_go_with_a_clear() -> None:
    """B157: what a lower tier still holds is known again once it is announced again."""
    told = Told(
        Stored([1], None, TOKENS[:16], 16),
        Stored([1], None, TOKENS[:16], 16, medium=CPU),
        Cleared(),
    )
    assert told.hit(17) == NOTHING
    told.tell(Stored([1], None, TOKENS[:16], 16, medium=CPU))
    assert told.hit(17) == Hit(0, 16)


def test_a_lower_tier_that_leaves_out_extra_keys_is_believed_by_name() -> None:
    """Offloading announces tokens without the salt; the GPU told whose block it is."""
    salted = Stored([1], None, TOKENS[:16], 16, extra_keys=[["s"]])
    told = Told(salted, Stored([1], None, TOKENS[:16], 16, medium=CPU), Removed([1]))
    assert told.hit(17) == NOTHING
    asked = Prompt(Identity("m"), pack_tokens(TOKENS[:17]), "s")
    assert told.index.match(asked) == {ENGINE: Hit(0, 16)}


WINDOW = {"group_idx": 1, "kv_cache_spec_kind": "sliding_window", "sliding_window": 33}


def window_blocks(first: int, count: int) -> Stored:
    """Blocks of a group whose window of 33 tokens needs the last two blocks of 16."""
    names = [101 + n for n in range(first, first + count)]
    parent = 100 + first if first else None
    tokens = TOKENS[16 * first : 16 * (first + count)]
    return Stored(names, parent, tokens, 16, None, None, **WINDOW)  # type: ignore[arg-type]


FULL = Stored([1, 2, 3, 4], None, TOKENS[:64], 16, kv_cache_spec_kind="full_attention")


def test_a_hit_needs_all_groups() -> None:
    """B181: full attention holds four blocks, the window group its first three, then fewer."""
    told = Told(FULL, window_blocks(0, 3))
    assert told.hit(65) == Hit(48, 48)
    # Of the window only the last two matter: the first may go.
    told.tell(Removed([101], group_idx=1))
    assert told.hit(65) == Hit(48, 48)
    # Now no end of a hit has its window.
    told.tell(Removed([102], group_idx=1))
    assert told.hit(65) == NOTHING
    told.tell(window_blocks(3, 1))
    assert told.hit(65) == Hit(64, 64)
    # Removed in the other group: only that one is touched.
    told.tell(Removed([104], group_idx=0))
    assert told.hit(65) == Hit(64, 64)


def test_a_state_group_needs_its_last_block() -> None:
    """Mamba: one state at the end of the hit stands for all before."""
    state = Stored([2], None, [], 16, group_idx=1, kv_cache_spec_kind="mamba")
    told = Told(FULL, state)
    assert told.hit(65) == Hit(32, 32)


def test_names_alone_wait_for_their_tokens() -> None:
    """B143: a window group that skips blocks is announced before the group that has all."""
    window = Stored([3, 4], None, [], 16, None, None, **WINDOW)  # type: ignore[arg-type]
    told = Told(window)
    assert told.hit(65) == NOTHING
    told.tell(FULL)
    assert told.hit(65) == Hit(64, 64)
    told.tell(Removed([3], group_idx=1))
    assert told.hit(65) == NOTHING


def test_names_that_go_while_they_wait() -> None:
    window = Stored([3, 4], None, [], 16, None, None, **WINDOW)  # type: ignore[arg-type]
    told = Told(window, window, Removed([4], group_idx=1), Removed([3], group_idx=1), FULL)
    assert told.hit(65) == Hit(64, 64)
    told.tell(Removed([4], group_idx=1))
    assert told.hit(65) == NOTHING


def test_a_group_that_nobody_can_place_makes_hits_inexact() -> None:
    """Its blocks are smaller than those whose tokens are told."""
    window = Stored([201, 202], None, [], 8, None, None, **WINDOW)  # type: ignore[arg-type]
    assert Told(FULL).hit(65) == Hit(64, 64, is_exact=True)
    assert Told(FULL, window).hit(65) == Hit(64, 64, is_exact=False)


def test_groups_of_other_block_sizes_end_together() -> None:
    small = Stored([101 + n for n in range(5)], None, TOKENS[:80], 16, group_idx=1)
    told = Told(Stored([1, 2], None, TOKENS[:64], 32), small)
    assert told.hit(97) == Hit(64, 64)
    told.tell(Removed([104], group_idx=1))
    assert told.hit(97) == Hit(32, 32)


@pytest.mark.parametrize(
    ("num_tokens", "expected"), [(1, 0), (16, 0), (17, 16), (32, 16), (33, 32), (64, 48), (65, 64)]
)
def test_the_last_token_is_never_reused(num_tokens: int, expected: int) -> None:
    assert Told(FULL).hit(num_tokens).num_tokens == expected


def test_blocks_wait_for_a_parent_that_another_group_tells() -> None:
    """A window group begins behind blocks that came from elsewhere, and is announced first."""
    told = Told(window_blocks(2, 2))
    assert told.hit(65) == NOTHING
    names: list[BlockHash] = [101, 102, 103, 104]
    told.tell(Stored(names, None, TOKENS[:64], 16, kv_cache_spec_kind="full_attention"))
    assert told.hit(65) == Hit(64, 64)


def test_blocks_that_go_while_they_wait_for_a_parent() -> None:
    told = Told(window_blocks(2, 2), Removed([103], group_idx=1))
    names: list[BlockHash] = [101, 102, 103, 104]
    told.tell(Stored(names, None, TOKENS[:64], 16, kv_cache_spec_kind="full_attention"))
    assert told.hit(65) == Hit(64, 64, is_exact=False)


def test_lower_tiers_go_on_for_all_groups_or_none() -> None:
    """A connector loads what every group lacks; a window reaches back into the GPU."""
    told = Told(FULL, window_blocks(0, 4), Removed([3, 4]), Removed([103, 104], group_idx=1))
    assert told.hit(65) == Hit(32, 32)
    told.tell(Stored([3, 4], None, [], 0, medium=CPU))
    assert told.hit(65) == Hit(32, 32)
    told.tell(Stored([103], None, [], 0, medium=CPU, group_idx=1))
    assert told.hit(65) == Hit(32, 48)
    told.tell(Stored([104], None, [], 0, medium=CPU, group_idx=1))
    assert told.hit(65) == Hit(32, 64)
