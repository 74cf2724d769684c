"""The index beside brute force: random events of several owners, tiers, groups and block sizes."""

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from support.index_model import (
    MODEL,
    Announced,
    Asked,
    ModelOwner,
    blocks_of,
    check_structure,
    name_of,
    stored,
)
from transload_router.core.index.index import Index
from transload_router.core.kv_events.events import CPU, GPU, STORAGE, Cleared, Removed, Stored

OWNERS = [("p0", 0), ("p0", 1), ("d0", 0)]
OWNER = st.sampled_from(OWNERS)
# Texts that part after one block, in the middle of one, and not at all; in blocks of 16.


def texts(block_size: int) -> list[Asked]:
    """Prompts that share prefixes, of up to five blocks and a rest."""
    long = tuple(range(5 * block_size + block_size // 2 + 1))
    parted = long[: 2 * block_size] + tuple(token + 1000 for token in long[2 * block_size :])
    late = long[: 2 * block_size + block_size // 2] + (7,) * (3 * block_size)
    return [
        Asked(long),
        Asked(long[: 3 * block_size]),
        Asked(parted),
        Asked(late),
        Asked(long, lora="x"),
        Asked(long, salt="x"),
        Asked(long[: 2 * block_size + 1], lora="x", salt="x"),
    ]


class OneGroup(RuleBasedStateMachine):
    """Models with one group: all tiers, each with a block size of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.model: dict[tuple[str, int], ModelOwner] = {}
        self.generations = dict.fromkeys(OWNERS, 0)

    @initialize(
        gpu_size=st.sampled_from([1, 16, 64, 128, 528]),
        cpu_factor=st.sampled_from([1, 2, 3]),
        as_bytes=st.booleans(),
    )
    def choose(self, gpu_size: int, cpu_factor: int, as_bytes: bool) -> None:
        self.sizes = {GPU: gpu_size, CPU: gpu_size * cpu_factor, STORAGE: gpu_size, "NVM": gpu_size}
        self.as_bytes = as_bytes
        self.texts = texts(gpu_size)

    def _apply(
        self, owner: tuple[str, int], event: Stored | Removed | Cleared
    ) -> ModelOwner | None:
        self.index.apply(owner, self.generations[owner], event)
        return self.model.get(owner)

    @rule(owner=OWNER)
    def add(self, owner: tuple[str, int]) -> None:
        if owner not in self.model:
            self.generations[owner] += 1
            self.model[owner] = ModelOwner()
        self.index.add_owner(owner, MODEL, self.generations[owner])

    @rule(owner=OWNER)
    def replace(self, owner: tuple[str, int]) -> None:
        self.generations[owner] += 1
        self.model[owner] = ModelOwner()
        self.index.add_owner(owner, MODEL, self.generations[owner])

    @rule(engine=st.sampled_from(["p0", "d0"]))
    def remove_engine(self, engine: str) -> None:
        self.index.remove_engine(engine)
        self.model = {key: one for key, one in self.model.items() if key[0] != engine}

    @rule(
        owner=OWNER,
        medium=st.sampled_from([GPU, GPU, GPU, CPU, STORAGE, "NVM"]),
        text=st.integers(0, 6),
        first=st.integers(0, 4),
        count=st.integers(1, 5),
    )
    def store(self, owner: tuple[str, int], medium: str, text: int, first: int, count: int) -> None:
        asked, size = self.texts[text], self.sizes[medium]
        count = min(count, len(asked.tokens) // size - first)
        if count < 1:
            return
        event = stored(asked, first, count, size, medium=medium, as_bytes=self.as_bytes)
        model = self._apply(owner, event)
        if model is None:
            return
        parent = asked.prefix(first * size) if first else None
        model.store(parent, Announced(blocks_of(asked, first, count, size), size, medium))

    @rule(
        owner=OWNER,
        medium=st.sampled_from([STORAGE, "NVM"]),
        text=st.integers(0, 6),
        first=st.integers(0, 4),
    )
    def store_by_name(self, owner: tuple[str, int], medium: str, text: int, first: int) -> None:
        size = self.sizes[GPU]
        prefix = self.texts[text].prefix((first + 1) * size)
        name = name_of(prefix, as_bytes=self.as_bytes)
        model = self._apply(owner, Stored([name], None, [], 0, medium=medium))
        if model is None:
            return
        sizes = [one for one in {size, *model.named} if prefix in model.named.get(one, ())]
        if len(prefix.tokens) % size == 0 and size in sizes:
            model.store(None, Announced((prefix,), size, medium))
        elif sizes:
            model.store(None, Announced((prefix,), sizes[0], medium))

    @rule(
        owner=OWNER,
        medium=st.sampled_from([GPU, GPU, CPU, STORAGE, "NVM"]),
        text=st.integers(0, 6),
        index=st.integers(0, 4),
        left=st.sampled_from([None, None, 0, 1, 2]),
    )
    def remove(
        self, owner: tuple[str, int], medium: str, text: int, index: int, left: int | None
    ) -> None:
        asked, size = self.texts[text], self.sizes[medium]
        prefix = asked.prefix((index + 1) * size)
        name = name_of(prefix, as_bytes=self.as_bytes)
        model = self._apply(
            owner, Removed([name], medium, num_remaining=None if left is None else [left])
        )
        if model is not None:
            model.remove(prefix, medium, 0, left)

    @rule(owner=OWNER, by_event=st.booleans())
    def clear(self, owner: tuple[str, int], by_event: bool) -> None:
        if by_event:
            self._apply(owner, Cleared())
        else:
            self.index.clear(owner)
        if owner in self.model:
            self.model[owner].clear()

    @rule(owner=OWNER, text=st.integers(0, 6))
    def late(self, owner: tuple[str, int], text: int) -> None:
        event = stored(self.texts[text], 0, 1, self.sizes[GPU], as_bytes=self.as_bytes)
        self.index.apply(owner, self.generations[owner] - 1, event)

    @rule(now=st.floats(0, 100))
    def expire(self, now: float) -> None:
        self.index.expire(now)

    @rule()
    def start_anew_from_a_snapshot(self) -> None:
        data = self.index.export()
        self.index = Index()
        self.index.load(data)
        for owner in self.model:
            self.index.add_owner(owner, MODEL, self.generations[owner])
        for model in self.model.values():
            # Names of gone blocks are left out; what is held is named.
            model.named = {}
            for (_, _, size), pool in model.pools.items():
                model.named.setdefault(size, set()).update(one for one in pool if pool[one] > 0)
            model.waiting = {}

    @invariant()
    def answers_are_those_of_brute_force(self) -> None:
        if not hasattr(self, "texts"):
            return
        for asked in self.texts:
            match = self.index.match(asked.prompt())
            expected = {
                owner: (model.gpu_tokens(asked), model.any_tokens(asked))
                for owner, model in self.model.items()
                if model.any_tokens(asked)
            }
            assert {
                key: (hit.num_gpu_tokens, hit.num_tokens) for key, hit in match.items()
            } == expected
            assert not any(hit.is_predicted or not hit.is_exact for hit in match.values())

    @invariant()
    def structure_is_sound(self) -> None:
        check_structure(self.index)

    def teardown(self) -> None:
        for owner in OWNERS:
            self.index.remove_engine(owner[0])
        for _ in range(10):
            self.index.expire(0)
        assert self.index.num_blocks == 0
        assert self.index._holders.tables == {}


class SeveralGroups(RuleBasedStateMachine):
    """Hybrid models: full attention and windows, block sizes that differ by group."""

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.model = {owner: ModelOwner() for owner in OWNERS}
        for owner in OWNERS:
            self.index.add_owner(owner, MODEL, 0)

    @initialize(
        shape=st.sampled_from(
            [
                # Block size and window by group.
                [(16, None), (16, 33)],
                [(16, 17), (16, None), (16, 50)],
                [(16, None), (32, 40)],
                [(64, None), (16, 100)],
                [(4, 9), (6, None)],
                [(1, 3)],
                [(528, None), (528, 600)],
                [(16, None), (16, None)],
            ]
        )
    )
    def choose(self, shape: list[tuple[int, int | None]]) -> None:
        self.shape = shape
        longest = max(size for size, _ in shape)
        long = tuple(range(6 * longest + 1))
        parted = long[: 2 * longest + 3] + (5,) * (3 * longest)
        self.texts = [Asked(long), Asked(long[: 4 * longest]), Asked(parted)]

    @rule(
        owner=OWNER,
        text=st.integers(0, 2),
        group=st.integers(0, 2),
        first=st.integers(0, 8),
        count=st.integers(1, 12),
    )
    def store(self, owner: tuple[str, int], text: int, group: int, first: int, count: int) -> None:
        group %= len(self.shape)
        size, window = self.shape[group]
        asked = self.texts[text]
        count = min(count, len(asked.tokens) // size - first)
        if count < 1:
            return
        event = stored(asked, first, count, size, group_idx=group, window=window)
        self.index.apply(owner, 0, event)
        model = self.model[owner]
        parent = asked.prefix(first * size) if first else None
        blocks = blocks_of(asked, first, count, size)
        model.store(parent, Announced(blocks, size, GPU, group, window))

    @rule(owner=OWNER, text=st.integers(0, 2))
    def store_all(self, owner: tuple[str, int], text: int) -> None:
        for group in range(len(self.shape)):
            self.store(owner, text, group, 0, 12)

    @rule(owner=OWNER, text=st.integers(0, 2), group=st.integers(0, 2), index=st.integers(0, 9))
    def remove(self, owner: tuple[str, int], text: int, group: int, index: int) -> None:
        group %= len(self.shape)
        prefix = self.texts[text].prefix((index + 1) * self.shape[group][0])
        self.index.apply(owner, 0, Removed([name_of(prefix)], group_idx=group))
        self.model[owner].remove(prefix, GPU, group)

    @rule(owner=OWNER)
    def clear(self, owner: tuple[str, int]) -> None:
        self.index.apply(owner, 0, Cleared())
        self.model[owner].clear()

    @invariant()
    def answers_are_those_of_brute_force(self) -> None:
        if not hasattr(self, "texts"):
            return
        for asked in self.texts:
            match = self.index.match(asked.prompt())
            expected = {
                owner: tokens
                for owner, model in self.model.items()
                if (tokens := model.gpu_tokens(asked))
            }
            assert {key: hit.num_tokens for key, hit in match.items()} == expected
        check_structure(self.index)


class Claims(RuleBasedStateMachine):
    """Predictions: what is expected is seen until it is told, over, or its owner is gone."""

    SIZE = 4

    def __init__(self) -> None:
        super().__init__()
        self.index = Index()
        self.now = 0.0
        self.model = {owner: ModelOwner() for owner in OWNERS}
        # Deadline by owner and text.
        self.claims: dict[tuple[tuple[str, int], Asked], float] = {}
        self.texts = [one for one in texts(self.SIZE) if len(one.tokens) >= self.SIZE]
        for owner in OWNERS:
            self.index.add_owner(owner, MODEL, 0)
            # Something to tell the block size.
            first = Asked((9,) * self.SIZE)
            self.index.apply(owner, 0, stored(first, 0, 1, self.SIZE))
            self.model[owner].store(None, Announced((first,), self.SIZE))

    @rule(owner=OWNER, text=st.integers(0, 6), ttl_s=st.sampled_from([1.0, 3.0, 3.0]))
    def predict(self, owner: tuple[str, int], text: int, ttl_s: float) -> None:
        asked = self.texts[text]
        self.index.predict(owner, asked.prompt(), self.now, ttl_s)
        self._expire()
        whole = asked.prefix(len(asked.tokens) // self.SIZE * self.SIZE)
        deadline = max(self.now + ttl_s, self.claims.get((owner, whole), 0.0))
        self.claims[owner, whole] = deadline

    @rule(owner=OWNER, text=st.integers(0, 6))
    def tell(self, owner: tuple[str, int], text: int) -> None:
        asked = self.texts[text]
        count = len(asked.tokens) // self.SIZE
        self.index.apply(owner, 0, stored(asked, 0, count, self.SIZE))
        prefixes = blocks_of(asked, 0, count, self.SIZE)
        self.model[owner].store(None, Announced(prefixes, self.SIZE))
        for prefix in prefixes:
            self.claims.pop((owner, prefix), None)

    @rule(owner=OWNER)
    def clear(self, owner: tuple[str, int]) -> None:
        self.index.clear(owner)
        self.model[owner].clear()
        self.claims = {key: one for key, one in self.claims.items() if key[0] != owner}

    @rule(seconds=st.sampled_from([0.5, 1.0, 4.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.index.expire(self.now)
        self._expire()

    def _expire(self) -> None:
        self.claims = {key: one for key, one in self.claims.items() if one > self.now}

    def _claimed_tokens(self, owner: tuple[str, int], asked: Asked) -> int:
        best = 0
        for (one, claimed), _ in self.claims.items():
            tokens = 0
            while (
                one == owner
                and tokens + self.SIZE < len(asked.tokens)
                and tokens + self.SIZE <= len(claimed.tokens)
                and asked.prefix(tokens + self.SIZE) == claimed.prefix(tokens + self.SIZE)
            ):
                tokens += self.SIZE
            best = max(best, tokens)
        return best

    @invariant()
    def claims_count(self) -> None:
        for asked in self.texts:
            match = self.index.match(asked.prompt())
            for owner, model in self.model.items():
                held, claimed = model.gpu_tokens(asked), self._claimed_tokens(owner, asked)
                hit = match.get(owner)
                assert (hit.num_gpu_tokens if hit else 0) == max(held, claimed)
                assert (hit.is_predicted if hit else False) == (claimed > held)

    @invariant()
    def structure_is_sound(self) -> None:
        check_structure(self.index)


TestOneGroup = pytest.mark.timeout(120)(OneGroup.TestCase)
TestOneGroup.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestSeveralGroups = pytest.mark.timeout(120)(SeveralGroups.TestCase)
TestSeveralGroups.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
TestClaims = pytest.mark.timeout(120)(Claims.TestCase)
TestClaims.settings = settings(max_examples=40, stateful_step_count=30, deadline=None)
