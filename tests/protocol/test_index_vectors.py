"""What real servers published, and the prompts that they were asked at the time."""

import json
from pathlib import Path

import pytest

from transload_router.core.index.hits import Hit
from transload_router.core.index.index import Index
from transload_router.core.index.keys import Identity
from transload_router.core.kv_events.decode import decode_batch
from transload_router.core.prompt import Prompt, pack_tokens

VECTORS = Path(__file__).parent / "vectors"
ENGINE = ("p0", 0)
NOTHING = Hit(0, 0)


@pytest.mark.parametrize("form", ["sha256-int", "cbor-bytes"])
def test_prompts_are_found_where_they_were_computed(form: str) -> None:
    index = Index()
    index.add_owner(ENGINE, "tiny", 0)
    found = {}
    asked: list[Prompt] = []
    lines = (VECTORS / f"vllm-0.32.0/kv-events-{form}.jsonl").read_text().splitlines()
    for line in lines:
        message = json.loads(line)
        phase = message["phase"]
        if message["src"] == "pub":
            payload = bytes.fromhex(message["frames"][2])
            for event in decode_batch(payload).events:
                index.apply(ENGINE, 0, event)
        elif message["src"] == "note":
            tokens = pack_tokens(message["prompt_token_ids"])
            plain, salted = (Prompt(Identity("tiny"), tokens, salt) for salt in (None, "tenant-a"))
            asked.append(plain)
            hits = [index.match(one).get(ENGINE, NOTHING) for one in (plain, salted)]
            found[phase] = [plain.num_tokens, *(hit.num_tokens for hit in hits)]
    # Tokens of the prompt, held without the salt, held with it; blocks of 128.
    assert found == {
        "stored-2blocks": [261, 256, 0],
        "stored-extend": [389, 384, 0],
        "stored-cache-salt": [131, 0, 128],
    }
    # The cache of 16 blocks was filled with others, then reset.
    assert [index.match(one) for one in asked] == [{}, {}, {}]
    stats = index.stats(ENGINE)
    assert stats is not None
    assert stats.num_blocks["GPU"] <= 16
    assert (stats.num_cleared, stats.num_orphaned, stats.num_unknown_removed) == (1, 0, 0)
