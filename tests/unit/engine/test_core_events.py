"""Events byte by byte, in both forms."""

from transload_engine.core.events import (
    AllBlocksCleared,
    Event,
    EventForm,
    encode,
    removed,
    stored,
)

STORED = stored([7, 8], None, [1, 2, 3, 4], 2, [("salt",), None])
EVENTS: list[Event] = [STORED, removed(7), AllBlocksCleared()]

# ts 1.0, [events], rank 3; members of a map in the order in which vLLM declares them.
MAPS = (
    b"\x93\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x93"
    b"\x8b\xa4type\xabBlockStored\xacblock_hashes\x92\x07\x08\xb1parent_block_hash\xc0"
    b"\xa9token_ids\x94\x01\x02\x03\x04\xaablock_size\x02\xa7lora_id\xc0\xa6medium\xa3GPU"
    b"\xa9lora_name\xc0\xaaextra_keys\x92\x91\xa4salt\xc0\xa9group_idx\x00"
    b"\xb2kv_cache_spec_kind\xaefull_attention"
    b"\x84\xa4type\xacBlockRemoved\xacblock_hashes\x91\x07\xa6medium\xa3GPU\xa9group_idx\x00"
    b"\x81\xa4type\xb0AllBlocksCleared"
    b"\x03"
)
# As vLLM 0.16.0 wrote them: tags first, later members not there.
ARRAYS = (
    b"\x93\xcb\x3f\xf0\x00\x00\x00\x00\x00\x00\x93"
    b"\x98\xabBlockStored\x92\x07\x08\xc0\x94\x01\x02\x03\x04\x02\xc0\xa3GPU\xc0"
    b"\x93\xacBlockRemoved\x91\x07\xa3GPU"
    b"\x91\xb0AllBlocksCleared"
    b"\x00"
)


def test_maps() -> None:
    assert encode(1.0, EVENTS, 3, EventForm.MAP) == MAPS


def test_arrays() -> None:
    assert encode(1.0, EVENTS, 0, EventForm.ARRAY) == ARRAYS


def test_byte_names_are_bytes() -> None:
    assert b"\xc4\x20" + b"a" * 32 in encode(1.0, [removed(b"a" * 32)], 0, EventForm.MAP)
