"""What passes, however large, and what values made by hand can get wrong; see also `refused`."""

from typing import Any

import pytest
from msgspec.structs import replace

from support.abi_placements import LAYOUTS, PLACEMENTS, SHAPE, Shape, sglang, vllm
from transload_abi import check_pages
from transload_abi.check import check
from transload_abi.errors import Contradiction, DescriptorError, LimitExceeded, UnknownPart
from transload_abi.footprint import Budget
from transload_abi.limits import MAX_GROUPS, MAX_PIECES, MAX_POOLS
from transload_abi.types import Codec, Descriptor, Group, Owner, Place, Pool, Role, TokenSlice

LARGE = Shape(layers=64, blocks=400_000, heads=8, tokens=16, size=128)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("shape", [SHAPE, Shape(1, 1, 1, 1, 8), Shape(3, 2, 1, 6, 8, "f32")])
def test_the_known_placements_pass(name: str, shape: Shape) -> None:
    check(PLACEMENTS[name](shape))


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_work_grows_with_neither_blocks_nor_layers(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[Budget] = []

    class Small(Budget):
        def __init__(self) -> None:
            super().__init__(60)
            budgets.append(self)

    monkeypatch.setattr(check_pages, "Budget", Small)
    for shape in (SHAPE, LARGE):
        check(PLACEMENTS[name](shape))
    small, large = budgets
    assert 0 < 60 - large.left == 60 - small.left


def test_places_of_one_layer_that_differ_in_the_way_to_the_next_are_one() -> None:
    d = vllm("LBNHC", SHAPE._replace(layers=1))
    (group,) = d.groups
    (place,) = group.places
    assert place.page_bytes > 0
    places = (place, replace(place, layer_stride=place.layer_stride + 8))
    roles = (group.roles[0], replace(group.roles[1], place=1))
    check(replace(d, groups=(replace(group, places=places, roles=roles),)))


def _overlaid(layout: str, other_tokens: int = 8) -> Descriptor:
    """Two groups of two layers each over the same bytes, with a table each."""
    one = vllm(layout)
    two = vllm(layout, SHAPE._replace(tokens=other_tokens))
    (group,) = one.groups
    other = replace(two.groups[0], id="second", layers=(2, 3), table=1)
    return replace(one, groups=(group, other))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_tables_may_overlay_the_same_blocks(layout: str) -> None:
    check(_overlaid(layout))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_table_may_not(layout: str) -> None:
    both = _overlaid(layout)
    first, second = both.groups
    with pytest.raises(Contradiction, match=r"^groups\[1\]\.roles\[0\]: shares a bit with groups"):
        check(replace(both, groups=(first, replace(second, table=0))))


def test_tables_of_other_strides_may_lie_side_by_side_but_not_over_each_other() -> None:
    with pytest.raises(Contradiction, match="of another table and block_stride"):
        check(_overlaid("LBHNC", other_tokens=4))
    both = _overlaid("LBHNC", other_tokens=4)
    (pool,), (first, second) = both.pools, both.groups
    (place,) = second.places
    beside = replace(place, offset=pool.num_bytes)
    check(
        replace(
            both,
            pools=(replace(pool, num_bytes=2 * pool.num_bytes),),
            groups=(first, replace(second, places=(beside,))),
        )
    )


def test_layers_of_two_tables_may_take_turns() -> None:
    one = vllm("LBHNC")
    (pool,), (group,) = one.pools, one.groups
    (place,) = group.places
    step = replace(place, layer_stride=2 * place.layer_stride)
    other = replace(step, offset=place.layer_stride, block_stride=place.block_stride)
    second = replace(group, id="second", layers=(2, 3), table=1, places=(other,))
    check(
        replace(
            one,
            pools=(replace(pool, num_bytes=2 * pool.num_bytes),),
            groups=(replace(group, places=(step,)), second),
        )
    )


@pytest.mark.parametrize("order", [1, -1])
def test_a_block_must_not_reach_into_another_of_another_table(order: int) -> None:
    both = _overlaid("BLHNC")
    (pool,), (first, second) = both.pools, both.groups
    moved = replace(second, places=(replace(second.places[0], offset=64),))
    wider = replace(pool, num_bytes=pool.num_bytes + 64, block_bytes=0)
    changed = replace(both, pools=(wider,), groups=(first, moved)[::order])
    with pytest.raises(Contradiction, match=r"a block shares bytes with another block of groups"):
        check(changed)
    single = replace(wider, num_blocks=1)
    check(replace(changed, pools=(single,)))


def _many_tables(count: int, apart: int) -> Descriptor:
    """A group of one layer for each table; the pages `apart` bytes from one to the next."""
    d = vllm("BLHNC", SHAPE._replace(layers=1))
    (group,), (pool,) = d.groups, d.pools
    page = group.places[0].page_bytes
    stride = page + apart * (count - 1)
    return replace(
        d,
        model=replace(d.model, num_layers=count),
        pools=(replace(pool, num_bytes=stride * pool.num_blocks, block_bytes=0),),
        groups=tuple(
            replace(
                group,
                id=f"g{at}",
                layers=(at,),
                table=at,
                places=(Place(("kv",), stride, 0, apart * at, page),),
            )
            for at in range(count)
        ),
    )


@pytest.mark.parametrize("apart", [0, SHAPE.heads * SHAPE.tokens * SHAPE.size * 4])
def test_work_grows_with_tables_and_not_with_their_pairs(
    apart: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    budgets: list[Budget] = []

    class Kept(Budget):
        def __init__(self, pieces: int = MAX_PIECES) -> None:
            super().__init__(pieces)
            budgets.append(self)

    monkeypatch.setattr(check_pages, "Budget", Kept)
    check(_many_tables(MAX_GROUPS, apart))
    assert MAX_PIECES - budgets[0].left < 8 * MAX_GROUPS


def test_of_many_tables_two_that_touch_are_found() -> None:
    page = SHAPE.heads * SHAPE.tokens * SHAPE.size * 4
    d = _many_tables(40, page)
    reaching = replace(d.groups[39].places[0], offset=page * 38 + 8)
    last = replace(d.groups[39], places=(reaching,))
    check(replace(d, groups=(*d.groups[:39], last)))
    with pytest.raises(Contradiction) as error:
        check(replace(d, groups=(*d.groups[:39], replace(last, table=38))))
    assert error.value.path == "groups[39].roles[0]"


def test_where_overlays_are_too_irregular_the_path_says_whose(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(check_pages, "Budget", lambda left=60: Budget(left))
    with pytest.raises(LimitExceeded) as error:
        check(_many_tables(8, 8))
    assert error.value.path.endswith("].roles[0]")


def test_a_layer_may_be_in_a_group_that_the_engine_rebuilds() -> None:
    one, two = vllm("LBHNC"), sglang()
    local = replace(two.groups[0], id="local", table=1, transferable=False)
    check(replace(one, pools=(*one.pools, *two.pools), groups=(*one.groups, local)))
    moved = replace(local, transferable=True)
    with pytest.raises(Contradiction, match=r"'k' of layer 0 is in groups\[0\] too"):
        check(replace(one, pools=(*one.pools, *two.pools), groups=(*one.groups, moved)))


def test_equal_places_are_one_place() -> None:
    one = vllm("LBHNC")
    (group,) = one.groups
    k, v = group.roles
    twice = replace(group, places=group.places * 2, roles=(k, replace(v, place=1)))
    check(replace(one, groups=(twice,)))


@pytest.mark.parametrize("interleave", [1, 2, 4, 8, 16, 24])
def test_interleaves_that_fit_into_blocks(interleave: int) -> None:
    check(_with(owner=Owner((0, 4, 4), TokenSlice(1, 2, interleave))))


@pytest.mark.parametrize("interleave", [3, 5, 12, 20])
def test_interleaves_that_do_not(interleave: int) -> None:
    with pytest.raises(Contradiction, match="does not divide into blocks of 8 tokens"):
        check(_with(owner=Owner((0, 4, 4), TokenSlice(1, 2, interleave))))


def test_a_ring_is_not_shared_by_tokens() -> None:
    ring = _with(kind="ring", window=8)
    check(ring)
    shared = replace(ring.groups[0], owner=Owner((0, 4, 4), TokenSlice(1, 2, 2)))
    with pytest.raises(Contradiction, match="'ring' is not shared by tokens") as error:
        check(replace(ring, groups=(shared,)))
    assert error.value.path == "groups[0].owner.tokens"


def _with(**changes: Any) -> Descriptor:
    one = vllm("LBHNC")
    return replace(one, groups=(replace(one.groups[0], **changes),))


def _state(kind: str = "recurrent", **changes: Any) -> Descriptor:
    """A recurrent layer: one state of 2 + 4 elements for each block of 16 tokens."""
    group = Group(
        id="state",
        kind="recurrent",
        layers=(0,),
        tokens_per_block=16,
        tokens_per_state=(16, 1),
        places=(Place(("kv",), 24),),
        roles=(
            Role("conv", "f32", 32, {"N": 1, "D": 2}, (("D", 1, 2, 32),)),
            Role("ssm", "f32", 32, {"N": 1, "D": 4}, (("D", 1, 4, 32),), 64),
        ),
    )
    pools = (Pool("kv", "device", 48, 2),)
    changed = replace(group, **{"kind": kind, **changes})
    return replace(vllm("LBHNC"), pools=pools, groups=(changed,))


def test_a_recurrent_group() -> None:
    check(_state())
    with pytest.raises(Contradiction, match="roles without heads"):
        check(_state(owner=Owner((0, 2, 4))))
    with pytest.raises(Contradiction, match="kind 'recurrent' has no window, got 4"):
        check(_state(window=4))
    with pytest.raises(Contradiction, match="'recurrent' is not shared by tokens"):
        check(_state(owner=Owner(tokens=TokenSlice(0, 2, 16))))
    with pytest.raises(Contradiction, match="one state in a block"):
        check(_state(tokens_per_state=(8, 1)))
    with pytest.raises(Contradiction, match="needs the role 'k'"):
        check(_state(kind="full"))


@pytest.mark.parametrize(
    ("changes", "error", "path"),
    [
        ({"kind": "paged"}, UnknownPart, "groups[0].kind"),
        ({"layers": ()}, Contradiction, "groups[0].layers"),
        ({"places": ()}, Contradiction, "groups[0].places"),
        ({"roles": ()}, Contradiction, "groups[0].roles"),
        ({"id": ""}, Contradiction, "groups[0].id"),
        ({"window": -1}, LimitExceeded, "groups[0].window"),
        ({"window": 8, "kind": "cross"}, Contradiction, "groups[0].window"),
        ({"window": 9, "kind": "ring"}, Contradiction, "groups[0].window"),
        ({"kind": "chunked_local"}, Contradiction, "groups[0].window"),
        ({"tokens_per_state": (1, 0)}, Contradiction, "groups[0].tokens_per_state"),
        ({"owner": Owner((0, 4, 1 << 17))}, LimitExceeded, "groups[0].owner.heads"),
        ({"owner": Owner((0, 4, 4), replica=(0, 0))}, Contradiction, "groups[0].owner.replica"),
        (
            {"owner": Owner((0, 4, 4), TokenSlice(0, 0))},
            Contradiction,
            "groups[0].owner.tokens.size",
        ),
    ],
)
def test_groups_made_by_hand(
    changes: dict[str, Any], error: type[DescriptorError], path: str
) -> None:
    with pytest.raises(error) as caught:
        check(_with(**changes))
    assert caught.value.path == path


@pytest.mark.parametrize("window", [0, 100])
def test_a_full_group_may_say_how_far_queries_look_back(window: int) -> None:
    check(_with(window=window))


def test_more_than_any_reader_takes() -> None:
    one = vllm("LBHNC")
    pools = tuple(replace(one.pools[0], id=str(number)) for number in range(MAX_POOLS + 1))
    with pytest.raises(LimitExceeded, match=r"^pools: expected 4096 or fewer, got 4097$"):
        check(replace(one, pools=pools))
    with pytest.raises(LimitExceeded, match=r"^groups: expected 256 or fewer, got 257$"):
        check(replace(one, groups=one.groups * (MAX_GROUPS + 1)))


@pytest.mark.parametrize(
    ("changes", "path"),
    [({"abi": "kvabi/2"}, "abi"), ({"endian": "big"}, "endian")],
)
def test_another_version(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(UnknownPart) as caught:
        check(replace(vllm("LBHNC"), **changes))
    assert caught.value.path == path


def test_pools_of_a_table_have_the_same_blocks() -> None:
    one = sglang()
    first, *rest = one.pools
    larger = replace(first, num_blocks=4, block_bytes=0)
    with pytest.raises(Contradiction, match=r"^groups\[0\]\.table: pools of \[4, 5\] blocks"):
        check(replace(one, pools=(larger, *rest)))


def test_a_layer_reads_one_other() -> None:
    one = vllm("LBHNC")
    with pytest.raises(Contradiction, match=r"^model\.kv_share: a layer reads two layers"):
        check(replace(one, model=replace(one.model, kv_share=((9, 0), (9, 1)))))


@pytest.mark.parametrize(("scales", "passes"), [(4, True), (3, False)])
def test_a_latent_has_a_scale_for_each_128_elements(scales: int, passes: bool) -> None:
    roles = (
        Role("latent", "e4m3", 8, {"N": 2, "D": 512}, (("N", 1, 2, 5248), ("D", 1, 512, 8))),
        Role(
            "latent_scale",
            "f32",
            32,
            {"N": 2, "G": scales},
            (("N", 1, 2, 5248), ("G", 1, scales, 32)),
            4096,
        ),
        Role("rope", "bf16", 16, {"N": 2, "D": 64}, (("N", 1, 2, 5248), ("D", 1, 64, 16)), 4224),
    )
    changes: dict[str, Any] = {
        "kind": "mla",
        "tokens_per_block": 2,
        "owner": Owner(),
        "codec": Codec("fp8_ds_mla_656"),
        "roles": roles,
    }
    if passes:
        check(_with(**changes))
    else:
        with pytest.raises(Contradiction, match="3 scales of 128 elements for 512"):
            check(_with(**changes))


def test_memory_and_rope_of_no_known_kind() -> None:
    one = vllm("LBHNC")
    disk: Any = "disk"
    with pytest.raises(UnknownPart, match=r"^pools\[0\]\.memory"):
        check(replace(one, pools=(replace(one.pools[0], memory=disk),)))
    with pytest.raises(UnknownPart, match=r"^model\.rope\.state"):
        check(replace(one, model=replace(one.model, rope=replace(one.model.rope, state=disk))))
