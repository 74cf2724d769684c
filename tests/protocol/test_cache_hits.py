"""What the index says of recorded events is what vLLM's own cache manager found at that moment."""

from pathlib import Path

import pytest

from support.cache_hits import DOUBTFUL, EXACT, SHORT, Compared, check, compare

VECTORS = Path(__file__).parent / "vectors" / "vllm-0.32.0" / "cache-hits.jsonl"
COMPARED = {one.name: one for one in compare(VECTORS.read_text().splitlines())}


@pytest.mark.parametrize("compared", COMPARED.values(), ids=lambda one: one.name)
def test_hits_agree(compared: Compared) -> None:
    assert len(compared.pairs) == 120
    assert compared.num_found > 10
    check(compared)


def test_every_kind_of_cache_is_recorded() -> None:
    assert COMPARED.keys() == EXACT | SHORT | DOUBTFUL
    assert sum(one.num_found for one in COMPARED.values()) > 400
