"""Descriptors in which two roles have half of each byte; no array of numpy lies so."""

from typing import Any

from abi_vectors.pages import Document, model

_PAGE = 24


def halves() -> dict[str, Document]:
    """By the names of their files: halves of one table, and of two whose blocks are the same."""
    return {
        "half-bytes-of-one-table": _document([_group(0, 0), _group(1, 0)]),
        "half-bytes-of-two-tables": _document([_group(0, 0), _group(1, 1)]),
    }


def _group(half: int, table: int) -> Document:
    """Sixteen elements in one half of as many bytes, then two scales."""
    key = {"dtype": "e2m1", "bits": 4, "shape": {"D": 16, "N": 1}, "terms": [["D", 1, 16, 8]]}
    scale = {"dtype": "ue8m0", "bits": 8, "shape": {"G": 2, "N": 1}, "terms": [["G", 1, 2, 8]]}
    more: dict[str, Any] = {"table": table} if table else {}
    base = {"base_bits": 4} if half else {}
    return more | {
        "id": f"half{half}",
        "kind": "full",
        "layers": [half],
        "tokens_per_block": 1,
        "codec": {"id": "block_scaled"},
        "places": [{"pools": ["kv"], "block_stride": _PAGE}],
        "roles": [
            {"role": "index_k"} | key | base,
            {"role": "index_k_scale", "base_bits": 8 * (16 + 2 * half)} | scale,
        ],
    }


def _document(groups: list[Document]) -> Document:
    pool = {"id": "kv", "memory": "host", "num_blocks": 2, "num_bytes": 2 * _PAGE}
    return {"abi": "kvabi/1", "groups": groups, "model": model(), "pools": [pool]}
