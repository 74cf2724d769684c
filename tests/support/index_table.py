"""Tables of the index from and to plain dicts."""

from collections.abc import Mapping

from transload_router.core.index.table import PART_SHIFT, Table, new_table


def parted(masks: Mapping[int, int]) -> Table:
    """A table with these keys."""
    table = new_table()
    for key, mask in masks.items():
        table[key >> PART_SHIFT][key] = mask
    return table


def whole(table: Table) -> dict[int, int]:
    """All keys of a table; each must be in its own part."""
    masks = {}
    for number, part in enumerate(table):
        for key, mask in part.items():
            assert key >> PART_SHIFT == number
            masks[key] = mask
    return masks
