"""Each field of a descriptor, changed alone on one side: the verdicts and the path they name."""

from collections.abc import Callable
from typing import Any, NamedTuple, get_args, get_type_hints

import msgspec
import pytest
from msgspec.structs import replace

from support.abi_placements import Shape, vllm
from transload_abi import types
from transload_abi.compare import compare
from transload_abi.floats import f32
from transload_abi.types import Codec, Descriptor, Owner, Place, Producer, TokenSlice

Change = Callable[[Descriptor], Descriptor]


def base() -> Descriptor:
    return vllm("LBHNC")


def fp8() -> Descriptor:
    scales: dict[str, types.Param] = {
        "scales.k": [f32(0.5), f32(0.5)],
        "scales.v": [f32(1.0), f32(1.0)],
    }
    return group(codec=Codec("fp8_per_tensor", scales))(vllm("LBHNC", Shape(dtype="e4m3")))


def model(**fields: Any) -> Change:
    return lambda d: replace(d, model=replace(d.model, **fields))


def rope(**fields: Any) -> Change:
    return lambda d: replace(d, model=replace(d.model, rope=replace(d.model.rope, **fields)))


def pool(**fields: Any) -> Change:
    return lambda d: replace(d, pools=(replace(d.pools[0], **fields), *d.pools[1:]))


def group(**fields: Any) -> Change:
    return lambda d: replace(d, groups=(replace(d.groups[0], **fields), *d.groups[1:]))


def owner(**fields: Any) -> Change:
    return lambda d: group(owner=replace(d.groups[0].owner, **fields))(d)


def place(**fields: Any) -> Change:
    return lambda d: group(places=(replace(d.groups[0].places[0], **fields),))(d)


def role(**fields: Any) -> Change:
    """Of K, and of nothing else."""
    return lambda d: group(roles=(replace(d.groups[0].roles[0], **fields), d.groups[0].roles[1]))(d)


def producer(**fields: Any) -> Change:
    return lambda d: replace(d, producer=Producer(**fields))


def other_pool_name(d: Descriptor) -> Descriptor:
    return place(pools=("memory",))(pool(id="memory")(d))


def pool_for_each_layer(d: Descriptor) -> Descriptor:
    d = replace(d, pools=(*d.pools, replace(d.pools[0], id="kv1")))
    return place(pools=("kv", "kv1"), layer_stride=0)(d)


def further_group(d: Descriptor) -> Descriptor:
    return replace(d, groups=(*d.groups, replace(d.groups[0], id="more", layers=(2, 3))))


def k_in_a_place_of_its_own(d: Descriptor) -> Descriptor:
    spare = replace(d.pools[0], id="spare")
    other = Place(pools=("spare",), block_stride=1024, layer_stride=5120)
    d = replace(d, pools=(*d.pools, spare))
    return role(place=1)(group(places=(*d.groups[0].places, other))(d))


def half_the_heads(d: Descriptor) -> Descriptor:
    roles = tuple(
        replace(
            each,
            shape={**each.shape, "H": 2},
            terms=tuple(
                (axis, div, 2 if axis == "H" else extent, stride)
                for axis, div, extent, stride in each.terms
            ),
        )
        for each in d.groups[0].roles
    )
    return owner(heads=(2, 4, 4))(group(roles=roles)(d))


def half_the_tokens(d: Descriptor) -> Descriptor:
    return replace(vllm("LBHNC", Shape(tokens=4)), model=d.model)


def half_the_elements(d: Descriptor) -> Descriptor:
    k = d.groups[0].roles[0]
    return role(shape={**k.shape, "D": 8}, terms=(*k.terms[:2], ("D", 1, 8, 16)))(d)


def transposed(d: Descriptor) -> Descriptor:
    k = d.groups[0].roles[0]
    return role(terms=(k.terms[0], ("N", 1, 8, 16), ("D", 1, 16, 512)))(d)


def without_v(d: Descriptor) -> Descriptor:
    return group(roles=d.groups[0].roles[:1])(d)


def sharded(slice_: TokenSlice) -> Callable[[], Descriptor]:
    return lambda: owner(tokens=slice_)(base())


class Row(NamedTuple):
    """What is changed, what follows if the destination has it and if the source has it."""

    change: Change
    to_changed: str
    from_changed: str
    path: str = ""
    base: Callable[[], Descriptor] = base


def same(change: Change) -> Row:
    return Row(change, "identical", "identical")


def refused(change: Change, path: str) -> Row:
    return Row(change, "refused", "refused", path)


def lossless(change: Change, path: str) -> Row:
    return Row(change, "lossless", "lossless", path)


HALVES = TokenSlice(0, 2, 1)

TABLE: dict[str, Row | None] = {
    "Descriptor.abi": refused(lambda d: replace(d, abi="kvabi/2"), "abi"),
    "Descriptor.model": refused(model(name="b", weights="sha256:" + "1" * 64), "model.weights"),
    "Descriptor.pools": same(lambda d: replace(d, pools=(*d.pools, replace(d.pools[0], id="x")))),
    "Descriptor.groups": same(further_group),
    "Descriptor.producer": same(producer(engine="another", version="9", layout="NHD")),
    "Descriptor.endian": None,
    "Model.name": same(model(name="the same under another name")),
    "Model.revision": same(model(revision="main")),
    "Model.num_layers": refused(model(num_layers=65), "model.num_layers"),
    "Model.rope": refused(rope(state="none"), "model.rope.state"),
    "Model.weights": refused(model(weights="sha256:" + "1" * 64), "model.weights"),
    "Model.adapter": refused(model(adapter="lora-7"), "model.adapter"),
    "Model.kv_share": refused(model(kv_share=((3, 1),)), "model.kv_share"),
    "Rope.state": refused(rope(state="not_applied"), "model.rope.state"),
    "Rope.params": refused(rope(params={"factor": 8}), "model.rope.params.factor"),
    "Producer.engine": same(producer(engine="another")),
    "Producer.version": same(producer(version="0.33.0")),
    "Producer.backend": same(producer(backend="TRITON_ATTN")),
    "Producer.layout": same(producer(layout="NHD")),
    "Pool.id": same(other_pool_name),
    "Pool.memory": same(pool(memory="host")),
    "Pool.num_bytes": same(pool(num_bytes=1 << 30)),
    "Pool.num_blocks": same(pool(num_blocks=4)),
    "Pool.align": same(pool(align=4096)),
    "Pool.block_bytes": same(pool(block_bytes=2048)),
    "TokenSlice.rank": Row(
        owner(tokens=TokenSlice(1, 2, 1)),
        "refused",
        "refused",
        "groups[0].owner.tokens",
        sharded(HALVES),
    ),
    "TokenSlice.size": lossless(owner(tokens=HALVES), "groups[0].owner.tokens"),
    "TokenSlice.interleave": Row(
        owner(tokens=TokenSlice(0, 2, 8)),
        "lossless",
        "lossless",
        "groups[0].owner.tokens",
        sharded(HALVES),
    ),
    "Owner.heads": lossless(half_the_heads, "groups[0].owner.heads"),
    "Owner.tokens": lossless(owner(tokens=HALVES), "groups[0].owner.tokens"),
    "Owner.replica": same(owner(replica=(1, 2))),
    "Place.pools": same(pool_for_each_layer),
    "Place.block_stride": same(place(block_stride=4096)),
    "Place.layer_stride": same(place(layer_stride=1 << 20)),
    "Place.offset": same(place(offset=256)),
    "Place.page_bytes": same(place(page_bytes=0)),
    "Role.role": refused(role(role="latent"), "groups[0].roles"),
    "Role.dtype": Row(role(dtype="f16"), "lossy", "lossy", "groups[0].roles[0].dtype"),
    "Role.bits": None,
    "Role.shape": refused(half_the_elements, "groups[0].roles[0].shape.D"),
    "Role.terms": lossless(transposed, "groups[0].roles[0].terms"),
    "Role.base_bits": lossless(role(base_bits=1 << 20), "groups[0].roles[0].base_bits"),
    "Role.place": lossless(k_in_a_place_of_its_own, "groups[0].roles[1].place"),
    "Codec.id": Row(lambda _: fp8(), "lossy", "lossless", "groups[0].codec.id"),
    "Codec.params": Row(
        lambda d: group(
            codec=replace(
                d.groups[0].codec,
                params={**d.groups[0].codec.params, "scales.k": [f32(0.5), f32(0.25)]},
            )
        )(d),
        "lossy",
        "lossy",
        "groups[0].codec.params.scales.k[1]",
        fp8,
    ),
    "Group.id": same(group(id="renamed")),
    "Group.kind": refused(group(kind="chunked_local"), "groups[0].kind"),
    "Group.layers": same(group(layers=(1, 0))),
    "Group.tokens_per_block": lossless(half_the_tokens, "groups[0].tokens_per_block"),
    "Group.places": same(lambda d: group(places=(*d.groups[0].places, Place(("kv",), 64)))(d)),
    "Group.roles": refused(without_v, "groups[0].roles"),
    "Group.codec": Row(lambda _: fp8(), "lossy", "lossless", "groups[0].codec.id"),
    "Group.tokens_per_state": refused(group(tokens_per_state=(2, 1)), "groups[0].tokens_per_state"),
    "Group.window": refused(group(window=128), "groups[0].window"),
    "Group.table": same(group(table=3)),
    "Group.null_block": same(group(null_block=None)),
    "Group.transferable": Row(
        group(transferable=False), "identical", "refused", "groups[0].layers"
    ),
    "Group.owner": lossless(half_the_heads, "groups[0].owner.heads"),
    "Group.opaque": refused(group(opaque="engine 1.0"), "groups[0].opaque"),
}
"""By field. None: its value follows from other fields, or there is only one."""


def test_no_field_is_missing() -> None:
    structs = [
        each
        for each in vars(types).values()
        if isinstance(each, type) and issubclass(each, msgspec.Struct)
    ]
    fields = {
        f"{struct.__name__}.{name}" for struct in structs for name in struct.__struct_fields__
    }
    assert len(structs) == 11
    assert fields == set(TABLE)


def test_what_cannot_change_alone() -> None:
    assert {name for name, row in TABLE.items() if row is None} == {
        "Descriptor.endian",
        "Role.bits",
    }
    assert get_args(get_type_hints(Descriptor)["endian"]) == ("little",)


@pytest.mark.parametrize("name", [name for name, row in TABLE.items() if row])
def test_a_field_alone(name: str) -> None:
    row = TABLE[name]
    assert row is not None
    plain = row.base()
    changed = row.change(plain)
    assert changed != plain
    there, back = compare(plain, changed), compare(changed, plain)
    assert (there.verdict, back.verdict) == (row.to_changed, row.from_changed)
    for comparison in (there, back):
        for finding in comparison.findings:
            expected = "" if finding.verdict == "identical" else row.path
            assert finding.path == expected
            assert bool(finding.reason) == bool(expected)


DOES_NOT_REFUSE = (
    "Pool.num_blocks",
    "Pool.memory",
    "Pool.num_bytes",
    "Place.offset",
    "Producer.version",
    "Group.tokens_per_block",
    "Role.terms",
    "Owner.heads",
)


@pytest.mark.parametrize("name", DOES_NOT_REFUSE)
def test_engines_may_differ_in_what_only_moves(name: str) -> None:
    row = TABLE[name]
    assert row is not None
    assert {row.to_changed, row.from_changed} <= {"identical", "lossless"}


def test_the_owner_of_nothing_else() -> None:
    """The default slice says the same as one that is written out."""
    d = base()
    spelled = owner(tokens=TokenSlice(0, 1, 64))(d)
    assert compare(d, spelled).verdict == "identical"
    assert Owner().tokens == TokenSlice()
