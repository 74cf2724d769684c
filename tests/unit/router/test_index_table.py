"""Tables in parts: where keys go, and that parts do not grow alike."""

from transload_router.core.index.holders import Holders
from transload_router.core.index.keys import chain_keys
from transload_router.core.index.table import PART_SHIFT, new_table
from transload_router.core.prompt import pack_tokens

KEYS = chain_keys(7, pack_tokens(range(1 << 17)), 4)


def test_a_table_has_a_part_for_every_key_and_they_are_empty() -> None:
    table = new_table()
    assert not any(table)
    assert len({id(part) for part in table}) == len(table)
    assert (len(table) - 1) == ((1 << 64) - 1) >> PART_SHIFT


def test_hashes_fill_no_part_much_more_than_others() -> None:
    holders = Holders()
    table = holders.open(("GPU", 0))
    holders.join(table, KEYS, holders.take_slot())
    sizes = [len(part) for part in table]
    assert sum(sizes) == len(KEYS) == 1 << 15
    # 128 on average, 11 as the standard deviation.
    assert max(sizes) < 200
    assert min(sizes) > 70
    assert len(set(sizes)) > 20


def test_keys_of_one_part_differ_in_the_bits_where_a_dict_begins() -> None:
    first = KEYS[0] >> PART_SHIFT
    starts = {hash(key) & 0xFF for key in KEYS if key >> PART_SHIFT == first}
    # Of 128 keys in 256 places 101 are expected to be apart.
    assert len(starts) > 70
