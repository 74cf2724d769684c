"""Blocks are named as vLLM named them."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from support.block_hashes import DEFAULT_SEED, as_int, chain, sha256_cbor
from transload_engine.core.hashes import (
    NO_SEED,
    OWN_HASH,
    BlockHash,
    CborHash,
    HashAlgorithm,
    block_hash,
)

VECTORS = Path(__file__).parents[2] / "protocol" / "vectors"


def stored(name: str) -> Iterator[dict[str, Any]]:
    """The events of blocks that an engine published, with the members of vLLM 0.16 at least."""
    members = ("block_hashes", "parent_block_hash", "token_ids", "block_size")
    for line in (VECTORS / name).read_text().splitlines():
        record = json.loads(line)
        if record["src"] != "pub":
            continue
        _, events, *_ = msgspec.msgpack.decode(bytes.fromhex(record["frames"][-1]))
        for event in events:
            if isinstance(event, list) and event[0] == "BlockStored":
                yield dict(zip(members, event[1:5], strict=True))
            elif isinstance(event, dict) and event["type"] == "BlockStored":
                yield event


def names(event: dict[str, Any], recipe: BlockHash, parent: bytes) -> list[bytes]:
    size, found = event["block_size"], []
    for number in range(len(event["block_hashes"])):
        keys = (event.get("extra_keys") or {0: None})[0] if number == 0 else None
        tokens = event["token_ids"][number * size : (number + 1) * size]
        parent = recipe.of(parent, tokens, keys[0] if keys else None)
        found.append(parent)
    return found


def test_blocks_have_the_names_that_vllm_0_32_published() -> None:
    recipe = CborHash()
    events = list(stored("vllm-0.32.0/kv-events-cbor-bytes.jsonl"))
    salted = [each for each in events if any(each["extra_keys"] or ())]
    assert events
    assert salted
    for event in events:
        parent = event["parent_block_hash"] or recipe.root
        assert names(event, recipe, parent) == event["block_hashes"]


def test_a_seed_is_that_of_pythonhashseed() -> None:
    recipe = CborHash("0")
    events = list(stored("vllm-0.16.0/kv-events-cbor-int-seed0.jsonl"))
    first = [each for each in events if each["parent_block_hash"] is None]
    matching = [
        each
        for each in first
        if [as_int(name) for name in names(each, recipe, recipe.root)] == each["block_hashes"]
    ]
    # One prompt was salted, whose key had no name of its kind then.
    assert len(matching) == len(first) - 1 > 0


def test_the_recipe_is_the_one_that_tests_check_captures_with() -> None:
    tokens = [70_000, 0, 5, 1, 2**31, 3]
    keys = [(("cache_salt", "sää"),), None, None]
    expected = chain(sha256_cbor, sha256_cbor(DEFAULT_SEED), tokens, 2, keys)
    recipe, found = block_hash(HashAlgorithm.SHA256_CBOR, NO_SEED), []
    parent = recipe.root
    for number, salt in enumerate(("sää", None, None)):
        parent = recipe.of(parent, tokens[number * 2 : number * 2 + 2], salt)
        found.append(parent)
    assert found == expected


def test_our_own_recipe_tells_salts_apart() -> None:
    assert block_hash(HashAlgorithm.TRANSLOAD, NO_SEED) is OWN_HASH
    one, other, none = (OWN_HASH.of(OWN_HASH.root, [1, 2], salt) for salt in ("a", "b", None))
    assert len({one, other, none}) == 3


def test_what_a_recipe_needs_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cbor2", None)
    with pytest.raises(ValueError, match="sha256_cbor needs cbor2"):
        CborHash()
