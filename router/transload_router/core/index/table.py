"""Keys to bit masks of owner slots, in parts, so that no single insert takes long.

A dict that has used up its room is copied as a whole, and an event loop waits for it: 4 ms of
CPU time at 131,000 keys, 35 ms at a million (bench/index.py has what is left of it). Of parts
each is copied on an insert of its own, since keys that are hashes fill no two of them alike.
"""

# Keys are hashes of 64 bits and unsigned. The highest ones say the part: the low ones are where a
# dict begins to look, and would lead all keys of a part to the same few places.
PART_SHIFT = 56
_NUM_PARTS = 1 << (64 - PART_SHIFT)

# A key is in `table[key >> PART_SHIFT]`, if at all.
Table = tuple[dict[int, int], ...]


def new_table() -> Table:
    """A table without keys."""
    return tuple({} for _ in range(_NUM_PARTS))
