"""What a mover asks for, where its bytes are received, and what it says of itself."""

import numpy as np
import pytest
import torch
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_moves import regroup, with_heads, with_layers
from support.abi_pages import PLAIN
from support.abi_pages import Shape as PageShape
from support.abi_placements import PLACEMENTS, Shape
from support.wire_payloads import blank, shared, tables, transfer
from transload_abi import oracle
from transload_abi.errors import PlanError, Refused
from transload_abi.types import Descriptor
from transload_abi.wire.messages import Table
from transload_abi.wire.payload import payload_of
from transload_connector.transports.kernel_calls_route import Route
from transload_connector.transports.mover import Mover, Request

SHAPE = Shape(layers=2, blocks=9, heads=4, tokens=16, size=64)
"""Pages of 16 KiB."""


def _request(num_blocks: int, dst: list[int], num_tokens: int, first_token: int = 0) -> Request:
    return Request([(Table(0, num_blocks),)], {0: dst}, num_tokens, first_token)


def _memory(d: Descriptor) -> dict[str, torch.Tensor]:
    return shared(blank(d))


# --- direct


@pytest.mark.parametrize(
    ("src", "dst", "form"),
    [
        ("LBHNC", "LBHNC", "page"),
        ("LBHNC", "BLHNC", "page"),
        ("BLHNC", "BLHNC", "block"),
        ("sglang", "sglang", "page"),
        ("LHBNC", "LHBNC", "elements"),
    ],
)
def test_the_same_pages_are_received_where_they_belong(src: str, dst: str, form: str) -> None:
    source, into = PLACEMENTS[src](SHAPE), PLACEMENTS[dst](SHAPE)
    mover = Mover.compile(source, into)
    (plan,) = mover.reads(_request(2, [5, 3], 32))
    assert plan.is_direct
    assert plan.template.form == form
    memory = _memory(into)
    sinks = mover.sinks(plan, memory)
    assert sum(map(len, sinks)) == plan.num_bytes
    for number, sink in enumerate(sinks):
        sink[:] = bytes([number]) * len(sink)
    # Nobody landed anything, and yet it is there.
    written = torch.cat([pool[pool != oracle.FILL] for pool in memory.values()])
    assert len(written) == plan.num_bytes


def test_neighbours_are_received_as_one() -> None:
    same = PLACEMENTS["BLHNC"](SHAPE)
    mover = Mover.compile(same, same)
    (plan,) = mover.reads(_request(4, [4, 5, 6, 2], 64))
    sinks = mover.sinks(plan, _memory(same))
    block = same.pools[0].block_bytes
    assert [len(sink) for sink in sinks] == [3 * block, block]


def test_heads_that_lie_together_are_received_where_they_belong() -> None:
    source, half = PLACEMENTS["LBHNC"](SHAPE), Shape(2, 9, 2, 16, 64)
    mover = Mover.compile(source, with_heads(PLACEMENTS["LBHNC"](half), 2, 4))
    (plan,) = mover.reads(_request(1, [5], 16))
    assert plan.template.heads == (2, 2)
    assert plan.num_bytes == 2 * 2 * 16 * 64 * 2 * 2
    assert plan.is_direct


@pytest.mark.parametrize(
    ("src", "dst"),
    [("LBNHC", "LBHNC"), ("LBHNC", "rocm"), ("vllm_cpu", "LBNHC")],
)
def test_other_pages_are_staged(src: str, dst: str) -> None:
    into = PLACEMENTS[dst](SHAPE)
    mover = Mover.compile(PLACEMENTS[src](SHAPE), into)
    (plan,) = mover.reads(_request(2, [5, 3], 32))
    assert not plan.is_direct
    with pytest.raises(PlanError, match="landed"):
        mover.sinks(plan, _memory(into))


def test_short_runs_are_staged() -> None:
    tiny = SHAPE._replace(tokens=2, size=8)
    mover = Mover.compile(PLACEMENTS["LBHNC"](tiny), PLACEMENTS["BLHNC"](tiny))
    (plan,) = mover.reads(_request(2, [5, 3], 4))
    assert not plan.is_direct


def _padded(d: Descriptor, num_bytes: int) -> Descriptor:
    """Layers outermost, with pads behind each page."""
    (group,), (pool,) = d.groups, d.pools
    (place,) = group.places
    page = place.page_bytes + num_bytes
    padded = replace(place, page_bytes=page, block_stride=page, layer_stride=page * pool.num_blocks)
    size = page * pool.num_blocks * len(group.layers)
    return replace(regroup(d, places=(padded,)), pools=(replace(pool, num_bytes=size),))


@pytest.mark.parametrize(("pads", "form"), [(1024, "page"), (16384, "elements")])
def test_pages_are_sent_whole_where_they_have_few_pads(pads: int, form: str) -> None:
    padded = _padded(PLACEMENTS["LBHNC"](SHAPE), pads)
    (plan,) = Mover.compile(padded, padded).reads(_request(2, [5, 3], 32))
    assert plan.template.form == form
    assert plan.is_direct


def _in_one_block(ids: tuple[str, str], layers: tuple[int, int] = (0, 1)) -> Descriptor:
    """Two groups of a layer each, in blocks of both."""
    both = PLACEMENTS["BLHNC"](SHAPE)
    (group,) = both.groups
    (place,) = group.places
    groups = tuple(
        replace(
            group,
            id=name,
            layers=(layer,),
            places=(replace(place, layer_stride=0, offset=at * place.layer_stride),),
        )
        for at, (name, layer) in enumerate(zip(ids, layers, strict=True))
    )
    return replace(both, groups=groups)


def test_groups_of_one_block_are_read_once() -> None:
    both = _in_one_block(("first", "second"))
    (plan,) = Mover.compile(both, both).reads(_request(2, [5, 3], 32))
    assert plan.template.form == "block"
    assert plan.num_bytes == 2 * both.pools[0].block_bytes


def test_a_block_of_which_another_source_gives_a_part_is_not_received_whole() -> None:
    both = _in_one_block(("first", "second"))
    first = with_layers(PLACEMENTS["LBHNC"](SHAPE._replace(layers=1)), 0)
    mover = Mover.compile([first, both], both)
    asked = [(part.source, part.read.group, part.read.form) for part in mover.parts]
    assert asked == [(0, "attention", "page"), (1, "second", "page")]


def test_pads_that_only_the_source_has_are_not_received() -> None:
    lean = PLACEMENTS["LBHNC"](SHAPE)
    mover = Mover.compile(_padded(lean, 1024), lean)
    (plan,) = mover.reads(_request(2, [5, 3], 32))
    assert sum(map(len, mover.sinks(plan, _memory(lean)))) == plan.num_bytes
    assert plan.template.form == "elements"


# --- what is asked for


def test_only_blocks_that_are_missing_are_read() -> None:
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE))
    (plan,) = mover.reads(_request(4, [1, 2, 3, 4], 64, first_token=32))
    assert plan.chunk.blocks == ((2, 2),)
    message = plan.message(7, "cmpl-1", stream=3, checksums=True)
    assert (message.id, message.handoff, message.stream) == (7, "cmpl-1", 3)
    assert message.checksums
    assert message.blocks == ((2, 2),)


def test_nothing_is_read_of_a_request_that_is_there() -> None:
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE))
    assert mover.reads(_request(4, [1, 2, 3, 4], 64, first_token=64)) == []


def test_blocks_outside_of_the_window_are_not_read() -> None:
    windowed = regroup(PLACEMENTS["LBHNC"](SHAPE), kind="sliding_window", window=20)
    mover = Mover.compile(windowed, windowed)
    request = Request([(Table(0, 4, ((0, 2),)),)], {0: [0, 0, 7, 4]}, 64)
    (plan,) = mover.reads(request)
    assert plan.chunk.blocks == ((2, 2),)


def test_a_chunk_is_as_long_as_told() -> None:
    source, into = PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE)
    block = payload_of(source, Mover.compile(source, into).parts[0].read).block_bytes
    mover = Mover.compile(source, into, chunk_bytes=2 * block)
    plans = mover.reads(_request(5, [1, 2, 3, 4, 5], 80))
    assert [plan.num_bytes // block for plan in plans] == [2, 2, 1]
    assert [plan.chunk.blocks for plan in plans] == [((0, 2),), ((2, 2),), ((4, 1),)]


def test_a_block_longer_than_a_chunk_is_read_by_layers() -> None:
    source, into = PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE)
    page = source.groups[0].places[0].page_bytes
    mover = Mover.compile(source, into, chunk_bytes=page)
    plans = mover.reads(_request(1, [1], 16))
    assert [plan.template.layers for plan in plans] == [(0, 1), (1, 1)]
    assert [plan.num_bytes for plan in plans] == [page, page]


def test_a_list_longer_than_its_request_is_refused_before_it_is_made() -> None:
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE))
    with pytest.raises(PlanError, match="4294967296 blocks for 64 tokens"):
        mover.reads(_request(1 << 32, [1, 2, 3, 4], 64))


def test_tables_of_each_source_are_asked_for() -> None:
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE))
    with pytest.raises(PlanError, match="0 sources came for 1"):
        mover.reads(Request([], {0: [1]}, 16))


# --- memory


def test_a_payload_of_another_length_is_refused() -> None:
    into = PLACEMENTS["LBHNC"](SHAPE)
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), into)
    (plan,) = mover.reads(_request(1, [1], 16))
    memory = _memory(into)
    with pytest.raises(PlanError, match=f"expected {plan.num_bytes} bytes"):
        mover.land(plan, bytes(plan.num_bytes - 1), memory)
    assert (memory["kv"] == oracle.FILL).all()


@pytest.mark.parametrize("dst", ["LBHNC", "LBNHC"])
def test_pools_that_are_too_short_or_missing_are_refused(dst: str) -> None:
    into = PLACEMENTS[dst](SHAPE)
    mover = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), into)
    (plan,) = mover.reads(_request(1, [1], 16))
    assert plan.is_direct == (dst == "LBNHC")
    short = {"kv": torch.zeros(into.pools[0].num_bytes - 1, dtype=torch.uint8)}
    for memory, reason in ((short, "expected"), ({}, "no memory")):
        with pytest.raises(PlanError, match=reason):
            mover.land(plan, bytes(plan.num_bytes), memory)
        if plan.is_direct:
            with pytest.raises(PlanError, match=reason):
                mover.sinks(plan, memory)


# --- conversions

PAGES = PageShape(heads=2, tokens=4, size=32, layers=2, blocks=3)


def test_halves_of_bytes_that_are_no_pairs_are_refused() -> None:
    """Two tokens share a byte: no row of elements is bytes of its own."""
    scales = [role for role in formats.int4(False, shape=PAGES).groups[0].roles if role.bits > 4]
    axes = [("H", 1, PAGES.heads, 2048), ("N", 1, PAGES.tokens, 4), ("D", 1, PAGES.size, 16)]
    codes = [
        replace(role, terms=tuple(axes), base_bits=base)
        for role, base in zip(
            formats.int4(False, shape=PAGES).groups[0].roles[::2], (8192, 12288), strict=True
        )
    ]
    source = formats.int4(False, shape=PAGES)
    (group,), (pool,) = source.groups, source.pools
    place = replace(group.places[0], block_stride=4096, layer_stride=2048, page_bytes=2048)
    odd = replace(
        regroup(source, roles=(*codes, *scales), places=(place,)),
        pools=(replace(pool, block_bytes=4096, num_bytes=3 * 4096),),
    )
    with pytest.raises(Refused, match="do not fill bytes"):
        Mover.compile(odd, formats.plain(shape=PAGES), allows_lossy=True)


@pytest.mark.parametrize(
    ("src", "dst", "route"),
    [
        (formats.plain, formats.per_token_head, Route("kernel")),
        (formats.int4, formats.plain, Route("kernel")),
        (
            formats.plain,
            formats.int4,
            Route("torch in scratch", "no kernel makes zero points as kvabi/1 does"),
        ),
        (formats.plain, formats.nvfp4, Route("torch in scratch", "no kernel knows e2m1")),
        (
            formats.cpu,
            formats.per_token_head,
            Route("kernel in scratch", "the source's elements do not lie in rows"),
        ),
    ],
)
def test_ways_of_conversions_are_counted_and_said(src, dst, route: Route) -> None:  # type: ignore[no-untyped-def]
    made = [
        each(False, shape=PAGES) if each is formats.int4 else each(shape=PAGES)
        for each in (src, dst)
    ]
    mover = Mover.compile(made[0], made[1], allows_lossy=True)
    assert route.way in mover.explain()
    assert route.why in mover.explain()
    assert mover.conversions == {}
    chance = np.random.default_rng(1)
    values = chance.integers(-8, 8, made[0].pools[0].num_bytes).astype(np.uint8)
    holder = (made[0], {"kv": values}, {0: [1, 2]})
    request = Request([tables(made[0], {0: [1, 2]})], {0: [2, 1]}, 8)
    transfer(mover, request, [holder], blank(made[1]))
    assert mover.conversions[route] >= 2
    assert sum(mover.conversions.values()) == 4


def test_no_kernel_makes_powers_of_two_as_the_document_does() -> None:
    """Kernels compare peaks exactly: what is next to zero comes out under another scale."""
    rows = formats.v41_mxfp8()
    (group,) = rows.groups
    latent = replace(
        group.roles[0], dtype="f32", bits=32, terms=(("N", 1, 32, 16384), ("D", 1, 512, 32))
    )
    place = replace(group.places[0], block_stride=65536, layer_stride=0, page_bytes=0)
    pool = replace(rows.pools[0], num_bytes=65536 * rows.pools[0].num_blocks, block_bytes=0)
    plain = replace(
        regroup(
            rows,
            roles=(latent,),
            places=(place,),
            codec=PLAIN,
            layers=group.layers[:1],
        ),
        pools=(pool,),
    )
    mover = Mover.compile(plain, rows, allows_lossy=True)
    assert "no kernel makes ue8m0 scales as kvabi/1 does" in mover.explain()
    tiny = np.ones(pool.num_bytes // 4, "<u4").view(np.uint8)
    holder = (plain, {"kv": tiny}, {0: [1]})
    memory = blank(rows)
    transfer(mover, Request([tables(plain, {0: [1]})], {0: [1]}, 128), [holder], memory)
    expected = oracle.blank(rows)
    values = oracle.read_values(plain, {"kv": tiny}, plain.groups[0].id, "latent", [1])
    oracle.write_values(rows, expected, group.id, "latent", [1], values)
    found = oracle.read_elements(rows, memory, group.id, "latent_scale", [1])
    due = oracle.read_elements(rows, expected, group.id, "latent_scale", [1])
    assert (found[:1] == due[:1]).all()


def test_explaining_names_reads_and_who_copies() -> None:
    text = Mover.compile(PLACEMENTS["LBNHC"](SHAPE), PLACEMENTS["LBHNC"](SHAPE)).explain()
    assert text.splitlines()[0].startswith("copies by ")
    assert "attention, all layers: form elements, 32768 bytes of a block, staged" in text
