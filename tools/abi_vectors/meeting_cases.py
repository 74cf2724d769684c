"""Layers that several groups hold: which meet, and what of pages that nobody describes moves."""

from typing import Any

from abi_vectors import formats, state_formats
from abi_vectors.latent_cases import rows_of
from abi_vectors.pages import Cache
from abi_vectors.regions import Field, Region, regions
from abi_vectors.several_groups import joined
from abi_vectors.transfers import SMALL, ConvertCase, small

WRITERS = ("example/1.0 part=keys", "example/1.0 part=sums")


def meeting_cases() -> list[ConvertCase]:
    """All of them."""
    return [*_sorts(), *_undescribed()]


def two_writers(ids: tuple[str, str], sizes: tuple[int, int] = (40, 24)) -> Cache:
    """Pages of two writers on one layer; `ids` are of their groups, tables in that order."""
    order = sorted(range(2), key=lambda number: ids[number])
    return joined(
        {
            f"part{number}": state_formats.opaque_pages(
                SMALL,
                sizes[number],
                id=ids[number],
                opaque=WRITERS[number],
                **({"table": table} if table else {}),
            )
            for table, number in enumerate(order)
        }
    )


def three_sorts(layout: str, ids: tuple[str, str, str]) -> Cache:
    """A layer with keys and values of all tokens, of a ring and of the encoder's positions."""
    own: tuple[dict[str, Any], ...] = (
        {},
        {"kind": "ring", "window": 2},
        {"kind": "cross"},
    )
    order = sorted(range(3), key=lambda number: ids[number])
    caches = {}
    for table, number in enumerate(order):
        given = own[number] | ({"table": table} if table else {})
        caches[f"sort{number}"] = formats.vllm(layout, SMALL, id=ids[number], **given)
    return joined(caches)


def two_compressors(ids: tuple[str, str], *, is_apart: bool) -> Cache:
    """Rows to compress of a layer's latents and of its index keys, which are alike."""
    slide: dict[str, Any] = {"kind": "sliding_window", "window": 4}
    row = rows_of(4)[0]
    index: Region = [field._replace(role=f"index_{field.role}") for field in row]
    order = sorted(range(2), key=lambda number: ids[number])
    caches = {}
    for table, number in enumerate(order):
        fields = (row, index)[number]
        parts = [fields[:1], fields[1:]] if is_apart else [fields]
        given = slide | ({"table": table} if table else {})
        caches[f"rows{number}"] = regions("LB", SMALL, parts, id=ids[number], **given)
    return joined(caches)


def two_latents(ids: tuple[str, str]) -> Cache:
    """The compressed latents of all tokens and those of a window, of one layer and alike."""
    kinds: tuple[dict[str, Any], ...] = (
        {"kind": "mla"},
        {"kind": "sliding_window_mla", "window": 4},
    )
    row: Region = [Field("latent", "bf16", 4), Field("rope", "bf16", 2)]
    caches = {}
    for table, number in enumerate(sorted(range(2), key=lambda number: ids[number])):
        given = kinds[number] | ({"table": table} if table else {})
        caches[f"rows{number}"] = regions("LB", SMALL, [row], id=ids[number], **given)
    return joined(caches)


def opaque_rank(rank: int, **document: Any) -> Cache:
    """Pages of one of two ranks that take turns of one token."""
    tokens = {"size": 2} | ({"rank": rank} if rank else {})
    return state_formats.opaque_pages(SMALL, 40, owner={"tokens": tokens}, **document)


def _sorts() -> list[ConvertCase]:
    both = {"src_blocks": {0: [2, 1], 1: [1, 2]}, "dst_blocks": {0: [1, 2], 1: [2, 1]}}
    return [
        small(
            "pages-of-two-writers",
            "a layer has pages of two writers, in other tables at the destination",
            two_writers(("a", "b")),
            two_writers(("b", "a")),
            "identical",
            **both,
        ),
        small(
            "one-role-of-three-sorts",
            "a layer has keys of all tokens, of a ring and of the encoder, in other tables there",
            three_sorts("LBNHC", ("a", "b", "c")),
            three_sorts("LBNHC", ("c", "a", "b")),
            "identical",
            src_blocks={0: [2, 1], 1: [1], 2: [1, 2]},
            dst_blocks={0: [2], 1: [1, 2], 2: [1]},
            num_tokens=4,
            first_token=2,
            num_encoder_tokens=3,
        ),
        small(
            "two-compressors-of-one-layer",
            "rows of the latents' compressor and of the index keys' one, which look alike",
            two_compressors(("a", "b"), is_apart=False),
            two_compressors(("b", "a"), is_apart=True),
            "lossless",
            **both,
        ),
        small(
            "latents-of-a-window-beside-others",
            "a layer's compressed latents and those of its window, in other tables there",
            two_latents(("a", "b")),
            two_latents(("b", "a")),
            "identical",
            **both,
        ),
    ]


def _undescribed() -> list[ConvertCase]:
    text: dict[str, Any] = {"opaque": WRITERS[0]}
    two = SMALL._replace(heads=2)
    owner = {"heads": [0, 2, 2], "tokens": {"rank": 1, "size": 2}}
    position: list[Region] = [[Field("index_k", "bf16", 4), Field("position", "i64", 1)]]
    ring: dict[str, Any] = {"kind": "ring", "window": 2}
    return [
        small(
            "opaque-page-of-a-rank",
            "the second of two ranks that take turns: each block stands for four tokens",
            opaque_rank(1),
            opaque_rank(1),
            "identical",
            num_tokens=8,
            first_token=4,
            dst_blocks={0: [2]},
        ),
        small(
            "opaque-page-of-a-rank-with-an-empty-end",
            "five tokens: the shared list's last block has none of the second rank's",
            opaque_rank(1),
            opaque_rank(1),
            "identical",
            num_tokens=5,
        ),
        small(
            "opaque-packed-of-a-rank",
            "keys and values that nobody has shown, of every second token",
            formats.vllm("LBNHC", two, owner=owner, **text),
            formats.vllm("BLNHC", two, owner=owner, **text),
            "identical",
            num_tokens=8,
        ),
        small(
            "opaque-ring",
            "a ring of which nobody has shown what is in it",
            regions("LB", SMALL, position, **ring, **text),
            regions("LB", SMALL, position, **ring, **text),
            "identical",
            src_blocks={0: [1]},
            dst_blocks={0: [2]},
        ),
    ]
