"""Events into pools: what an engine announces and takes back, names and tables in step."""

from itertools import islice

from transload_router.core.index.families import Families
from transload_router.core.index.holders import Holders
from transload_router.core.index.naming import RefusedError, keys_of, parent_key
from transload_router.core.index.owner import MAX_ADAPTERS, Ghosts, Owner, Pool
from transload_router.core.index.predictions import Predictions
from transload_router.core.kv_events.events import GPU, BlockHash, Removed, Stored


class Intake:
    """Changes owners' blocks, and whatever else knows of them."""

    __slots__ = ("_families", "_holders", "_predictions")

    def __init__(self, holders: Holders, families: Families, predictions: Predictions) -> None:
        self._holders = holders
        self._families = families
        self._predictions = predictions

    def store(self, owner: Owner, event: Stored) -> None:
        """Take in what a tier holds from now on."""
        names = event.block_hashes
        if event.medium == GPU and event.group_idx not in owner.groups:
            owner.unplaced.add(event.group_idx)
        if not names:
            return
        if len(set(names)) < len(names) or event.parent_block_hash in names:
            owner.counts.num_refused += 1
            return
        if event.lora_name is not None and event.lora_id is not None:
            self._check_adapter(owner, event.lora_name, event.lora_id)
        if not event.token_ids:
            self._store_by_name(owner, event)
            return
        parent = parent_key(owner, event)
        if parent is None:
            owner.counts.num_orphaned += owner.awaited.add_child(event)
            return
        try:
            keys = keys_of(event, parent)
        except RefusedError:
            owner.counts.num_refused += 1
            return
        if event.medium != GPU:
            # Lower tiers leave out extra keys (`record_store`, offloading/events.py @ vLLM
            # 0.32.0), so a name that the GPU told more of is believed first.
            known = [owner.find(name, event.block_size) for name in names]
            keys = [key if one is None else one for key, one in zip(keys, known, strict=True)]
        self._put(owner, event, event.block_size, names, keys)

    def _store_by_name(self, owner: Owner, event: Stored) -> None:
        """Blocks announced by their names alone: of lower tiers, and of groups that skip some."""
        placed: dict[int, list[tuple[BlockHash, int]]] = {}
        for name in event.block_hashes:
            size = event.block_size or owner.size_of(name, event.group_idx)
            key = None if size is None else owner.find(name, size)
            if size is not None and key is not None:
                placed.setdefault(size, []).append((name, key))
            elif event.block_size and event.medium == GPU:
                owner.awaited.add(name, event)
                owner.counts.num_awaited += 1
            else:
                owner.counts.num_orphaned += 1
        for size, pairs in placed.items():
            self._put(owner, event, size, [name for name, _ in pairs], [key for _, key in pairs])

    def _put(
        self, owner: Owner, event: Stored, size: int, names: list[BlockHash], keys: list[int]
    ) -> None:
        pool = self._pool(owner, event, size)
        if pool is None:
            owner.counts.num_refused += 1
            return
        owner.counts.num_stored += len(names)
        if not pool.names.keys().isdisjoint(names):
            names, keys = _count_copies(pool, names, keys)
        pool.names.update(zip(names, keys, strict=True))
        self._holders.num_blocks += len(names)
        self._holders.join(pool.table, keys, owner.slot)
        if event.lora_name is not None:
            pool.adapters.update(dict.fromkeys(names, event.lora_name))
        if event.medium == GPU:
            self._predictions.settle(owner.slot.bit, keys)
        if owner.awaited:
            for name, key in zip(names, keys, strict=True):
                for waiting in owner.awaited.take(name, size):
                    if waiting.token_ids:
                        self.store(owner, waiting)
                    else:
                        self._put(owner, waiting, size, [name], [key])

    def _pool(self, owner: Owner, event: Stored, size: int) -> Pool | None:
        num_pools = len(owner.pools)
        pool = owner.pool(self._holders, (event.medium, event.group_idx), size)
        if pool is None:
            return None
        is_other = len(owner.pools) != num_pools
        if event.medium == GPU:
            kind, window = event.kv_cache_spec_kind, event.sliding_window
            is_other |= owner.show_group(event.group_idx, size, window, kind)
        if is_other:
            self._families.leave(owner)
            self._families.join(owner)
        return pool

    def _check_adapter(self, owner: Owner, name: str, adapter_id: int) -> None:
        """An adapter of the same name and another id is another adapter."""
        known = owner.adapter_ids.get(name)
        if known == adapter_id:
            return
        if known is not None:
            for pool in owner.pools.values():
                for block in [block for block, one in pool.adapters.items() if one == name]:
                    self.forget(owner, pool, block)
        elif len(owner.adapter_ids) >= MAX_ADAPTERS:
            live = {one for pool in owner.pools.values() for one in pool.adapters.values()}
            owner.adapter_ids = {k: v for k, v in owner.adapter_ids.items() if k in live}
            if len(owner.adapter_ids) >= MAX_ADAPTERS:
                owner.adapter_ids.pop(next(iter(owner.adapter_ids)))
        owner.adapter_ids[name] = adapter_id

    def remove(self, owner: Owner, event: Removed) -> None:
        """Take out one physical copy of each block, or all but those that the engine says."""
        place = (event.medium, event.group_idx)
        pools = owner.by_place.get(place, ())
        left = event.num_remaining
        if len(pools) == 1 and left is None and not pools[0].copies and not pools[0].adapters:
            self._remove_sole(owner, pools[0], event.block_hashes, place)
            return
        for index, name in enumerate(event.block_hashes):
            pool = next((one for one in pools if name in one.names), None)
            if pool is None:
                if not owner.awaited.cancel(name, place):
                    owner.counts.num_unknown_removed += 1
                continue
            owner.counts.num_removed += 1
            further = pool.copies.get(name, 0) - 1 if left is None else left[index] - 1
            if further > 0:
                pool.copies[name] = further
                continue
            pool.copies.pop(name, None)
            if further < 0:
                self.forget(owner, pool, name)

    def _remove_sole(
        self, owner: Owner, pool: Pool, names: list[BlockHash], place: tuple[str, int]
    ) -> None:
        """The same where each block has one copy, in the only pool that may have it: the rule."""
        gone = {}
        take = pool.names.pop
        for name in names:
            key = take(name, None)
            if key is not None:
                gone[name] = key
            elif not owner.awaited.cancel(name, place):
                owner.counts.num_unknown_removed += 1
        owner.counts.num_removed += len(gone)
        self._holders.num_blocks -= len(gone)
        self._holders.leave_all(pool.table, gone.values(), owner.slot.bit)
        self._ghosts(owner, pool).add_all(gone)

    def forget(self, owner: Owner, pool: Pool, name: BlockHash) -> None:
        """Take a block out of a pool, however many copies there are; its name stays known."""
        key = pool.names.pop(name)
        pool.copies.pop(name, None)
        pool.adapters.pop(name, None)
        self._holders.leave(pool.table, key, owner.slot.bit)
        self._holders.num_blocks -= 1
        self._ghosts(owner, pool).add(name, key)

    def _ghosts(self, owner: Owner, pool: Pool) -> Ghosts:
        ghosts = owner.ghosts.get(pool.block_size)
        if ghosts is None:
            ghosts = owner.ghosts[pool.block_size] = Ghosts()
        return ghosts

    def shrink(self, owner: Owner, pool: Pool, spared: list[set[int]]) -> None:
        """Forget a sixty-fourth of a pool, the oldest names first.

        Args:
            owner: The pool's.
            pool: One that is not empty.
            spared: Keys that are passed over, once each.
        """
        for name in list(islice(pool.names, max(64, len(pool.names) // 64))):
            key = pool.names[name]
            if any(key in keys for keys in spared):
                for keys in spared:
                    keys.discard(key)
                # To the young end.
                del pool.names[name]
                pool.names[name] = key
            else:
                owner.counts.num_dropped += 1
                self.forget(owner, pool, name)


def _count_copies(
    pool: Pool, names: list[BlockHash], keys: list[int]
) -> tuple[list[BlockHash], list[int]]:
    """Count further copies of held blocks; what is left is new."""
    fresh = []
    for name, key in zip(names, keys, strict=True):
        if name in pool.names:
            pool.copies[name] = pool.copies.get(name, 0) + 1
        else:
            fresh.append((name, key))
    return [name for name, _ in fresh], [key for _, key in fresh]
