"""Which fingerprint each field is in: every field of the schema has its row."""

import hashlib
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from support.abi_formats import nvfp4, opaque
from support.abi_placements import PLACEMENTS, SHAPE, vllm
from transload_abi import fingerprints
from transload_abi.fingerprints import of_descriptor, of_group, of_groups
from transload_abi.text import decode_json, encode_json, encode_msgpack, read
from transload_abi.tree import nested
from transload_abi.types import Codec, Descriptor, Model, Owner, Producer, Rope, TokenSlice

BASE = replace(
    vllm("LBHNC"),
    model=replace(vllm("LBHNC").model, rope=Rope("applied", {"rope_theta": 10000})),
)


def _set(path: str, value: object) -> Callable[[Descriptor], Descriptor]:
    """Sets one field; `groups`, `roles`, `places` and `pools` stand for the first of each."""

    def change(struct: msgspec.Struct, names: list[str]) -> msgspec.Struct:
        name, *rest = names
        if not rest:
            return replace(struct, **{name: value})
        inner = getattr(struct, name)
        if isinstance(inner, tuple):
            return replace(struct, **{name: (change(inner[0], rest), *inner[1:])})
        return replace(struct, **{name: change(inner, rest)})

    def apply(descriptor: Descriptor) -> Descriptor:
        changed = change(descriptor, path.split("."))
        assert isinstance(changed, Descriptor)
        assert changed != descriptor
        return changed

    return apply


PLACE = BASE.groups[0].places[0]
NEW_TERMS = (("H", 1, 4, 4096), ("N", 1, 8, 512), ("D", 1, 16, 32))

FIELDS: list[tuple[str, object, set[str]]] = [
    ("abi", "kvabi/2", set()),
    ("endian", "big", {"page"}),
    ("producer", Producer("vllm", "1", "flash", "LBHNC"), set()),
    ("producer.engine", "sglang", set()),
    ("producer.version", "2", set()),
    ("producer.backend", "x", set()),
    ("producer.layout", "x", set()),
    ("model.name", "other", set()),
    ("model.num_layers", 9, {"meaning"}),
    ("model.revision", "r2", set()),
    ("model.weights", "sha256:" + "1" * 64, {"meaning"}),
    ("model.adapter", "lora", {"meaning"}),
    ("model.kv_share", ((9, 0),), {"meaning"}),
    ("model.rope", Rope("unknown"), {"meaning"}),
    ("model.rope.state", "not_applied", {"meaning"}),
    ("model.rope.params", {"rope_theta": 10001}, {"meaning"}),
    ("pools.id", "other", {"placement"}),
    ("pools.memory", "shared", {"placement"}),
    ("pools.num_bytes", 1 << 20, {"placement"}),
    ("pools.num_blocks", 4, {"placement"}),
    ("pools.align", 1, {"placement"}),
    ("pools.block_bytes", 4096, {"placement"}),
    ("groups.id", "other", set()),
    ("groups.kind", "cross", {"meaning"}),
    ("groups.layers", (1, 0), {"placement"}),
    ("groups.layers", (0, 2), {"meaning", "placement"}),
    ("groups.tokens_per_block", 16, {"page"}),
    ("groups.tokens_per_state", (2, 1), {"page", "meaning"}),
    ("groups.window", 128, {"meaning"}),
    ("groups.table", 3, {"placement"}),
    ("groups.null_block", None, {"placement"}),
    ("groups.transferable", False, set()),
    ("groups.opaque", "engine 1.0", {"page"}),
    ("groups.owner", Owner((0, 4, 4), replica=(1, 2)), {"placement"}),
    ("groups.owner.heads", (4, 8, 8), {"meaning", "placement"}),
    ("groups.owner.replica", (1, 2), {"placement"}),
    ("groups.owner.tokens", TokenSlice(1, 2, 8), {"placement"}),
    ("groups.owner.tokens.rank", 1, {"placement"}),
    ("groups.owner.tokens.size", 2, {"placement"}),
    ("groups.owner.tokens.interleave", 4, set()),
    ("groups.places", (replace(PLACE, offset=8),), {"placement"}),
    ("groups.places.pools", ("other",), {"placement"}),
    ("groups.places.block_stride", 8192, {"placement"}),
    ("groups.places.layer_stride", 1 << 16, {"placement"}),
    ("groups.places.offset", 8, {"placement"}),
    ("groups.places.page_bytes", 0, {"placement"}),
    ("groups.roles.role", "latent", {"page", "meaning"}),
    ("groups.roles.dtype", "f16", {"page", "meaning"}),
    ("groups.roles.bits", 8, {"page"}),
    ("groups.roles.shape", {"H": 4, "N": 8, "D": 8}, {"page", "meaning"}),
    ("groups.roles.shape", {"H": 2, "N": 8, "D": 16}, {"page"}),
    ("groups.roles.shape", {"H": 4, "N": 4, "D": 16}, {"page"}),
    ("groups.roles.terms", NEW_TERMS, {"page"}),
    ("groups.roles.base_bits", 16, {"page"}),
    ("groups.codec", Codec("fp8_per_tensor"), {"page", "meaning"}),
    ("groups.codec.id", "fp8_per_tensor", {"page", "meaning"}),
    ("groups.codec.params", {"scales.k": ["f32:3f800000"]}, {"page", "meaning"}),
]


@pytest.mark.parametrize(
    ("path", "value", "expected"),
    FIELDS,
    ids=[f"{path}={value!s:.20}" for path, value, _ in FIELDS],
)
def test_a_field_is_in_these_and_no_others(path: str, value: object, expected: set[str]) -> None:
    changed = _set(path, value)(BASE)
    for before, after in (
        (of_descriptor(BASE), of_descriptor(changed)),
        (of_group(BASE, BASE.groups[0]), of_group(changed, changed.groups[0])),
    ):
        differing = {
            name for name in before._fields if getattr(before, name) != getattr(after, name)
        }
        assert differing == expected


def test_every_field_has_a_row() -> None:
    def fields(struct: type[msgspec.Struct], path: str) -> set[str]:
        found = set()
        for name, inner in nested(struct).items():
            if inner is None or name not in ("pools", "groups", "model"):
                found.add(path + name)
            if inner is not None:
                found |= fields(inner.struct, f"{path}{name}.")
        return found

    rows = {path for path, _, _ in FIELDS}
    assert fields(Descriptor, "") - {"groups.roles", "groups.roles.place"} <= rows


def test_the_place_of_a_role_is_in_the_page() -> None:
    (group,) = BASE.groups
    k, v = group.roles
    places = (PLACE, replace(PLACE, offset=1 << 16))
    together = replace(group, places=places)
    apart = replace(together, roles=(k, replace(v, place=1)))
    assert of_group(BASE, together).page == of_group(BASE, group).page
    assert of_group(BASE, apart).page != of_group(BASE, group).page


def test_interleave_counts_where_ranks_share_tokens() -> None:
    shared = _set("groups.owner.tokens", TokenSlice(1, 2, 8))(BASE)
    finer = _set("groups.owner.tokens.interleave", 4)(shared)
    assert of_descriptor(finer).placement != of_descriptor(shared).placement


def test_without_digest_of_the_weights_name_and_revision_count() -> None:
    unknown = _set("model.weights", "")(BASE)
    known = of_descriptor(unknown).meaning
    assert known != of_descriptor(BASE).meaning
    for path in ("model.name", "model.revision"):
        assert of_descriptor(_set(path, "other")(unknown)).meaning != known


def test_scales_belong_to_layers_whatever_their_order() -> None:
    (group,) = BASE.groups
    one, two = "f32:3f800000", "f32:40000000"
    scaled = replace(group, codec=Codec("fp8_per_tensor", {"scales.k": [one, two]}))
    swapped = replace(group, layers=(1, 0), codec=Codec("fp8_per_tensor", {"scales.k": [two, one]}))
    assert of_group(BASE, scaled).meaning == of_group(BASE, swapped).meaning
    assert of_group(BASE, scaled).page != of_group(BASE, swapped).page
    mixed = replace(swapped, codec=scaled.codec)
    assert of_group(BASE, mixed).meaning != of_group(BASE, scaled).meaning


def test_extensions_are_in_none() -> None:
    plain = encode_json(BASE)
    extended = plain.replace(b'"model":{', b'"model":{"x_speed":9,').replace(
        b'"id":"attention"', b'"id":"attention","x_":[1]'
    )
    assert extended != plain
    assert of_descriptor(decode_json(extended)) == of_descriptor(BASE)


def test_both_encodings_have_the_same() -> None:
    for make in PLACEMENTS.values():
        descriptor = make(SHAPE)
        expected = of_descriptor(descriptor)
        assert of_descriptor(read(encode_json(descriptor))) == expected
        assert of_descriptor(read(encode_msgpack(descriptor))) == expected


def test_page_and_meaning_of_the_known_placements() -> None:
    prints = {name: of_descriptor(make(SHAPE)) for name, make in PLACEMENTS.items()}
    assert len({each.meaning for each in prints.values()}) == 1
    by_page: dict[str, set[str]] = {}
    for name, each in prints.items():
        by_page.setdefault(each.page, set()).add(name)
    shared = [names for names in by_page.values() if len(names) > 1]
    assert shared == [{"LBHNC", "BLHNC"}, {"LBNHC", "BLNHC"}]
    assert prints["vllm_cpu"].placement == prints["rocm"].placement
    assert prints["LBHNC"].placement != prints["BLHNC"].placement


def test_an_unused_pool_is_in_the_placement_of_the_whole_alone() -> None:
    spare = replace(BASE, pools=(*BASE.pools, replace(BASE.pools[0], id="spare")))
    assert of_group(spare, spare.groups[0]) == of_group(BASE, BASE.groups[0])
    whole, before = of_descriptor(spare), of_descriptor(BASE)
    assert (whole.page, whole.meaning) == (before.page, before.meaning)
    assert whole.placement != before.placement


def test_what_is_hashed() -> None:
    text = (
        'page:{"codec":{},"endian":"little","roles":['
        '{"bits":16,"dtype":"bf16","role":"k","shape":{"D":16,"H":4,"N":8},'
        '"terms":[["H",1,4,4096],["N",1,8,512],["D",1,16,16]]},'
        '{"base_bits":256,"bits":16,"dtype":"bf16","role":"v","shape":{"D":16,"H":4,"N":8},'
        '"terms":[["H",1,4,4096],["N",1,8,512],["D",1,16,16]]}],'
        '"tokens_per_block":8,"tokens_per_state":[1,1]}'
    )
    page = of_group(BASE, BASE.groups[0]).page
    assert page == hashlib.sha256(text.encode()).hexdigest()
    whole = f'page:["{page}"]'.encode()
    assert of_descriptor(BASE).page == hashlib.sha256(whole).hexdigest()


def test_who_writes_pages_is_hashed_where_it_is_told() -> None:
    d = opaque('by "x"', 16)
    text = (
        'page:{"codec":{"id":"opaque"},"endian":"little","opaque":"by \\"x\\"","roles":['
        '{"bits":8,"dtype":"u8","role":"page","shape":{"D":16},"terms":[["D",1,16,8]]}],'
        '"tokens_per_block":16,"tokens_per_state":[1,1]}'
    )
    assert of_group(d, d.groups[0]).page == hashlib.sha256(text.encode()).hexdigest()


def test_scales_beside_those_in_pages_belong_to_layers_too() -> None:
    def of(layers: tuple[int, int], scales: list[int | str]) -> str:
        d = nvfp4()
        codec = Codec("block_scaled", {"scales.k": scales, "scales.v": scales, "rotation.k": "h"})
        group = replace(d.groups[0], layers=layers, codec=codec)
        return of_group(d, group).meaning

    one, two = "f32:3f800000", "f32:40000000"
    assert of((0, 1), [one, two]) == of((1, 0), [two, one])
    assert of((0, 1), [one, two]) != of((0, 1), [two, one])


def test_the_model_is_spelled_out_once_for_all_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    (group,) = BASE.groups
    d = replace(BASE, groups=tuple(replace(group, id=str(at), layers=(at,)) for at in range(9)))
    one_by_one = [of_group(d, each) for each in d.groups]
    calls: list[Model] = []
    spelled = fingerprints._model

    def counted(model: Model) -> dict[str, Any]:
        calls.append(model)
        return spelled(model)

    monkeypatch.setattr(fingerprints, "_model", counted)
    assert of_groups(d) == one_by_one
    of_descriptor(d)
    assert len(calls) == 2
