"""The documents of `accepted/`: what is canonical in `decode/`, in other spellings."""

from __future__ import annotations

import json
from typing import NamedTuple

from abi_vectors.fingerprints import canonical_json
from abi_vectors.halves import halves
from abi_vectors.packed import pack
from abi_vectors.pages import Document
from abi_vectors.spellings import (
    Spell,
    all_of,
    extend,
    multiply_places,
    name_producer,
    reorder,
    spell_defaults,
    spell_empty,
    split_terms,
)

_ALL = all_of(split_terms, multiply_places, spell_defaults, extend, reorder)
_BY_HAND = ("plain.json", "plain.msgpack", "extensions.json")
PLAIN = "plain-canonical.json"


class Accepted(NamedTuple):
    """A document to read.

    Attributes:
        file: Its name.
        data: Its bytes; None: it is there already, written by hand.
        canonical: The file with its canonical JSON, from the folder that `accepted` is in.
        is_canonical: Whether a writer writes these bytes in this encoding.
    """

    file: str
    data: bytes | None
    canonical: str
    is_canonical: bool = False


def accepted(decoded: dict[str, Document], plain: Document) -> list[Accepted]:
    """All of them.

    Args:
        decoded: Canonical descriptors by the name of their folder in `decode/`.
        plain: What the documents that were written by hand say.
    """
    by_hand = [
        Accepted(file, None, f"accepted/{PLAIN}", file.endswith(".msgpack")) for file in _BY_HAND
    ]
    canonical = Accepted(PLAIN, canonical_json(plain), f"accepted/{PLAIN}", is_canonical=True)
    return [*by_hand, canonical, *_texts(decoded), *_twins(decoded), *_halves()]


def _texts(decoded: dict[str, Document]) -> list[Accepted]:
    spelled: list[tuple[str, str, Spell]] = [
        ("terms-to-merge", "vllm-cpu-two-kernel-blocks", split_terms),
        ("terms-to-merge-x8", "rocm-x8-bf16", split_terms),
        ("everything-reversed", "encoder-decoder", reorder),
        ("pools-reversed", "sglang-bf16", reorder),
        ("shares-reversed", "layers-that-share", reorder),
        ("layers-keep-their-order", "slice-of-layers", reorder),
        ("places-to-join", "per-token-head-e4m3fnuz-planes", multiply_places),
        ("places-of-one-layer", "mla-656-planes", multiply_places),
        ("defaults-spelled-out", "bare", spell_defaults),
        ("defaults-spelled-out-beside-others", "slice-of-heads", spell_defaults),
        ("defaults-that-are-empty", "bare", spell_empty),
        ("extensions-everywhere", "mla-e4m3-per-tensor", extend),
        ("stays-spelled-out", "group-that-stays", _ALL),
        ("all-of-it", "overlay-full-and-window", _ALL),
        ("all-of-it-odd", "odd-bf16", _ALL),
        ("all-of-it-recurrent", "recurrent-conv-ssm", _ALL),
        ("all-of-it-by-head", "gdn-by-head", _ALL),
        ("all-of-it-rotated", "int4-token-head", _ALL),
        ("all-of-it-opaque", "opaque-page", _ALL),
        ("terms-to-merge-of-four-bits", "nvfp4-flashinfer-swizzled", split_terms),
        ("terms-to-merge-turned", "nvfp4-ds-mla-352", split_terms),
        ("places-of-scales-to-join", "trtllm-nvfp4-separate-scales", multiply_places),
    ]
    texts = [
        Accepted(f"{name}.json", _spread(all_of(spell)(decoded[origin])), _path(origin))
        for name, origin, spell in spelled
    ]
    bare = _spread(all_of(spell_defaults)(decoded["bare"]))
    signed = bare.replace(b'"window": 0', b'"window": -0').replace(b"[0, 1, 1]", b"[-0, 1, 1]")
    escaped = bare.replace(b'"bare"', b'"\\u0062are"').replace(b'"kv"', b'"\\u006Bv"')
    escaped = escaped.replace(b"/", b"\\/").replace(b'"pools"', b'"\\u0070ools"')
    blank = bare.replace(b" ", b" \t\r\n ").replace(b"{", b"\n\n{") + b"\r\n\t "
    # Who wrote it stays in the canonical form, and is in no fingerprint.
    produced = canonical_json(all_of(name_producer)(decoded["bare"]))
    return [
        *texts,
        Accepted("producer.json", produced, "accepted/producer.json", is_canonical=True),
        Accepted("zeros-with-a-sign.json", signed, _path("bare")),
        Accepted("escapes.json", escaped, _path("bare")),
        Accepted("white-space.json", blank, _path("bare")),
    ]


def _twins(decoded: dict[str, Document]) -> list[Accepted]:
    canonical: tuple[str, ...] = (
        "odd-bf16",
        "mla-e4m3-per-tensor",
        "sglang-bf16",
        "group-that-stays",
        "bare",
    )
    canonical += ("ultraquant", "turboquant-3bit", "opaque-page", "qsa-ring", "mamba-by-head")
    # Maps have one order there; what lists say in other orders is left to JSON.
    spelled: list[tuple[str, str, Spell]] = [
        ("defaults-spelled-out", "bare", spell_defaults),
        ("extensions-everywhere", "mla-e4m3-per-tensor", extend),
        ("stays-spelled-out", "group-that-stays", all_of(spell_defaults, extend)),
    ]
    return [
        *(
            Accepted(f"{name}.msgpack", pack(decoded[name]), _path(name), is_canonical=True)
            for name in canonical
        ),
        *(
            Accepted(f"{name}.msgpack", pack(all_of(spell)(decoded[origin])), _path(origin))
            for name, origin, spell in spelled
        ),
    ]


def _halves() -> list[Accepted]:
    return [
        Accepted(f"{name}.json", canonical_json(each), f"accepted/{name}.json", is_canonical=True)
        for name, each in halves().items()
    ]


def _spread(document: Document) -> bytes:
    return json.dumps(document, ensure_ascii=False).encode()


def _path(name: str) -> str:
    return f"decode/{name}/descriptor.json"
