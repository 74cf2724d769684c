"""The oracle against pages whose bytes are written out here."""

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.abi_placements import MODEL, PLACEMENTS, SHAPE
from transload_abi import oracle
from transload_abi.dtypes import DTYPES
from transload_abi.errors import PlanError, ProofFailed
from transload_abi.floats import f32
from transload_abi.oracle_numbers import largest
from transload_abi.plan.types import (
    Batch,
    Conversion,
    Operand,
    Plan,
    Sequence,
    Side,
    Template,
)
from transload_abi.types import VERSION, Codec, Descriptor, Group, Owner, Place, Pool, Role


def values_of(*numbers: float) -> NDArray[np.float32]:
    return np.array(numbers, np.float32)


def of_one_group(codec: Codec, roles: tuple[Role, ...], **more: Any) -> Descriptor:
    """Two layers, three blocks of 64 bytes each, layers outermost."""
    place = Place(pools=("p",), block_stride=64, layer_stride=192, page_bytes=64)
    group = Group(
        id="g",
        kind="full",
        layers=(0, 1),
        tokens_per_block=2,
        places=(place,),
        roles=roles,
        codec=codec,
        **more,
    )
    pool = Pool(id="p", memory="host", num_bytes=384, num_blocks=3)
    return Descriptor(abi=VERSION, model=MODEL, pools=(pool,), groups=(group,))


def inline_scaled(dtype: str = "i8") -> Descriptor:
    """For each head and token eight elements of K and their scale, then of V."""
    terms = (("H", 1, 2, 32 * 8), ("N", 1, 2, 96))
    element = (*terms, ("D", 1, 8, 8))
    k = {"H": 2, "N": 2, "D": 8}
    roles = (
        Role("k", dtype, 8, k, element),
        Role("k_scale", "f32", 32, {"H": 2, "N": 2}, terms, 64),
        Role("v", dtype, 8, {"H": 2, "N": 2, "D": 1}, terms, 192),
        Role("v_scale", "f32", 32, {"H": 2, "N": 2}, (("H", 1, 2, 256), ("N", 1, 2, 8)), 208),
    )
    return of_one_group(Codec("per_token_head"), roles, owner=Owner(heads=(0, 2, 2)))


def test_an_element_is_where_the_formula_says() -> None:
    # The page of ABI.md, section 3: K transposed for each head.
    k = (("H", 1, 2, 256), ("N", 1, 2, 16), ("D", 1, 4, 32))
    shape = {"H": 2, "N": 2, "D": 4}
    v = (("H", 1, 2, 256), ("N", 1, 2, 64), ("D", 1, 4, 16))
    roles = (Role("k", "bf16", 16, shape, k), Role("v", "bf16", 16, shape, v, 128))
    d = of_one_group(Codec(), roles)
    memory = {"p": np.arange(384, dtype=np.uint8)}
    read = oracle.read_elements(d, memory, "g", "k", [2, 0])
    assert read.shape == (2, 2, 2, 2, 4)
    # Layer 1, block 2, head 1, token 1, element 3: 192 + 128 + 32 + 2 + 12 = 366 = 0x16e.
    assert read[1, 0, 1, 1, 3] == 0x6F6E
    assert oracle.read_elements(d, memory, "g", "v", [1])[0, 0, 1, 1, 3] == 0x7F7E


def test_digits_of_an_axis_are_taken_apart() -> None:
    terms = (("N", 1, 2, 128), ("D", 1, 2, 8), ("D", 2, 4, 32))
    roles = tuple(
        Role(name, "e4m3", 8, {"H": 1, "N": 2, "D": 8}, terms, base)
        for name, base in (("k", 0), ("v", 16))
    )
    d = of_one_group(Codec("fp8_per_tensor"), roles)
    memory = {"p": np.arange(384, dtype=np.uint8)}
    read = oracle.read_elements(d, memory, "g", "v", [0])
    assert read[0, 0, 0, 1].tolist() == [18, 19, 22, 23, 26, 27, 30, 31]


@pytest.mark.parametrize("name", PLACEMENTS)
def test_what_is_written_is_read_and_nothing_else_is_touched(name: str) -> None:
    d = PLACEMENTS[name](SHAPE)
    memory = oracle.blank(d)
    rng = np.random.default_rng(1)
    written = {}
    for role in ("k", "v"):
        written[role] = rng.integers(0, 2**16, (2, 2, 4, 8, 16), np.uint16)
        oracle.write_elements(d, memory, "attention", role, [3, 1], written[role])
    for role, elements in written.items():
        assert np.array_equal(oracle.read_elements(d, memory, "attention", role, [3, 1]), elements)
    touched = sum(int(np.count_nonzero(each != oracle.FILL)) for each in memory.values())
    assert touched <= 2 * 2 * elements.size * 2
    untouched = oracle.read_elements(d, memory, "attention", "v", [0, 2, 4])
    assert np.all(untouched == 0xA5A5)


def test_a_scale_of_a_tensor_is_its_layers() -> None:
    shape = {"H": 1, "N": 2, "D": 4}
    terms = (("N", 1, 2, 64), ("D", 1, 4, 8))
    roles = (Role("k", "e4m3", 8, shape, terms), Role("v", "e4m3", 8, shape, terms, 32))
    scales: list[int | str] = [f32(2.0), f32(0.5)]
    d = of_one_group(Codec("fp8_per_tensor", {"scales.k": scales, "scales.v": scales}), roles)
    memory = oracle.blank(d, fill=0x38)  # 1.0 in e4m3
    read = oracle.read_values(d, memory, "g", "v", [1])
    assert read[:, 0, 0, 0, 0].tolist() == [2.0, 0.5]
    oracle.write_values(d, memory, "g", "v", [1], np.full((2, 1, 1, 2, 4), 3.0, np.float32))
    assert oracle.read_elements(d, memory, "g", "v", [1])[:, 0, 0, 0, 0].tolist() == [0x3C, 0x4C]
    assert np.all(oracle.read_elements(d, memory, "g", "k", [1]) == 0x38)


@pytest.mark.parametrize("dtype", ["i8", "e4m3", "e4m3fnuz"])
def test_scales_inside_the_page_belong_to_head_and_token(dtype: str) -> None:
    d = inline_scaled(dtype)
    memory = oracle.blank(d)
    values = np.zeros((2, 1, 2, 2, 8), np.float32)
    values[1, 0, 1, 0] = [1, -2, 4, 0, 8, -16, 32, 127]
    oracle.write_values(d, memory, "g", "k", [2], values)
    scales = oracle.read_values(d, memory, "g", "k_scale", [2])
    assert scales.shape == (2, 1, 2, 2)
    assert scales[1, 0, 1, 0] == np.float32(127) / largest(dtype)
    assert scales[0, 0, 0, 0] == 1.0
    read = oracle.read_values(d, memory, "g", "k", [2])
    assert read[1, 0, 1, 0, -1] == pytest.approx(127, rel=1e-6)
    np.testing.assert_allclose(read, values, rtol=0.07)


def latent_rows() -> Descriptor:
    """Two latents of 256 elements with scales before them, and two rotary elements after them."""
    row = (256 + 8 + 4) * 8
    place = Place(pools=("p",), block_stride=2 * row // 8)
    states = ("N", 1, 2, row)
    roles = (
        Role("latent", "e4m3", 8, {"N": 2, "D": 256}, (states, ("D", 1, 256, 8)), 64),
        Role("latent_scale", "f32", 32, {"N": 2, "G": 2}, (states, ("G", 1, 2, 32))),
        Role("rope", "bf16", 16, {"N": 2, "D": 2}, (states, ("D", 1, 2, 16)), row - 32),
    )
    group = Group(
        id="g",
        kind="mla",
        layers=(0,),
        tokens_per_block=2,
        places=(place,),
        roles=roles,
        codec=Codec("fp8_ds_mla_656"),
    )
    pool = Pool(id="p", memory="host", num_bytes=row // 2, num_blocks=2)
    return Descriptor(abi=VERSION, model=MODEL, pools=(pool,), groups=(group,))


def test_a_latents_scale_belongs_to_128_elements() -> None:
    d = latent_rows()
    memory = oracle.blank(d, fill=0)
    values = np.repeat(values_of(448, 4480, 4.48, 0), 128).reshape(1, 1, 2, 256)
    oracle.write_values(d, memory, "g", "latent", [1], values)
    scales = oracle.read_values(d, memory, "g", "latent_scale", [1])
    assert scales.ravel().tolist() == [1.0, 10.0, float(np.float32(4.48) / np.float32(448)), 1.0]
    read = oracle.read_values(d, memory, "g", "latent", [1])
    np.testing.assert_allclose(read, values, rtol=1e-6)
    oracle.write_values(d, memory, "g", "rope", [1], np.full((1, 1, 2, 2), 1.5, np.float32))
    assert memory["p"][-4:].tolist() == [0xC0, 0x3F, 0xC0, 0x3F]


@pytest.mark.parametrize("block", [-1, 5])
def test_a_block_that_is_not_there_is_named(block: int) -> None:
    d = PLACEMENTS["LBNHC"](SHAPE)
    with pytest.raises(PlanError, match=f"block {block}: pool kv has 5"):
        oracle.read_elements(d, oracle.blank(d), "attention", "k", [block])


@pytest.mark.parametrize(
    ("group", "role", "words"),
    [("other", "k", "no group 'other'"), ("attention", "ssm", "no role 'ssm'")],
)
def test_what_a_descriptor_lacks_is_named(group: str, role: str, words: str) -> None:
    d = PLACEMENTS["rocm"](SHAPE)
    with pytest.raises(PlanError, match=words):
        oracle.read_elements(d, oracle.blank(d), group, role, [1])


def test_elements_of_another_shape_are_refused() -> None:
    d = PLACEMENTS["LBNHC"](SHAPE)
    with pytest.raises(PlanError, match=r"attention.k: expected elements of shape \(2, 1, 4,"):
        oracle.write_elements(
            d, oracle.blank(d), "attention", "k", [1], np.zeros((2, 1, 4), np.uint16)
        )


def planned(**given: Any) -> Plan:
    batch: dict[str, Any] = {
        "table": 0,
        "templates": (),
        "conversions": (),
        "src_parts": 1,
        "dst_parts": 1,
    }
    return Plan((Batch(**(batch | given)),))


def test_a_template_is_copied_for_each_piece() -> None:
    # Two parts of a source block become a destination block each; in each two runs of two bytes.
    template = Template(Side("s", 1, 16, (0, 8)), Side("d", 0, 10), run_bytes=2, loops=((2, 4, 3),))
    plan = planned(templates=(template,), src_parts=2, sequences=(Sequence(1, 0, 2),))
    to = np.zeros(20, np.uint8)
    oracle.execute(plan, {"s": np.arange(32, dtype=np.uint8)}, {"d": to})
    assert to.tolist() == [9, 10, 0, 13, 14, 0, 0, 0, 0, 0, 17, 18, 0, 21, 22, 0, 0, 0, 0, 0]


@pytest.mark.parametrize("offset", [-1, 31])
def test_a_run_outside_of_its_pool_is_our_fault(offset: int) -> None:
    template = Template(Side("s", offset, 0), Side("d", 0, 0), run_bytes=2)
    plan = planned(templates=(template,), sequences=(Sequence(0, 0, 1),))
    with pytest.raises(ProofFailed, match="of a pool that has 32 bytes"):
        oracle.execute(plan, {"s": np.zeros(32, np.uint8)}, {"d": np.zeros(2, np.uint8)})


def operand(role: str, dtype: str, pool: str, shape: dict[str, int], **more: Any) -> Operand:
    """Packed elements in the order of the axes, a piece after the other."""
    stride, terms = DTYPES[dtype].bits, []
    for axis, extent in reversed(shape.items()):
        terms.append((axis, 1, extent, stride))
        stride *= extent
    side = Side(pool, more.pop("offset", 0), stride // 8)
    return Operand(role, dtype, side, 0, shape, tuple(terms), **more)


def test_a_conversion_multiplies_and_rounds() -> None:
    shape = {"H": 1, "N": 2, "D": 2}
    src = operand("k", "e4m3", "s", shape, values=f32(0.5))
    dst = operand("k", "bf16", "d", shape)
    conversion = Conversion("k", 0, "fp8_per_tensor", "none", (src,), (dst,))
    plan = planned(conversions=(conversion,), sequences=(Sequence(1, 0, 1),))
    to = np.zeros(8, np.uint8)
    oracle.execute(plan, {"s": np.full(8, 0x38, np.uint8)}, {"d": to})
    assert to.view(np.uint16).tolist() == [0x3F00] * 4


def test_a_conversion_reads_and_makes_scales_inside_the_page() -> None:
    shape, of_scale = {"H": 1, "N": 2, "D": 2}, {"H": 1, "N": 2}
    src = (operand("k", "i8", "s", shape), operand("k_scale", "f32", "t", of_scale))
    dst = (operand("k", "e4m3", "d", shape), operand("k_scale", "f32", "e", of_scale))
    conversion = Conversion("k", 0, "per_token_head", "per_token_head", src, dst)
    plan = planned(conversions=(conversion,), sequences=(Sequence(0, 0, 1),))
    source = {
        "s": np.array([1, 2, 0, 0xFC], np.uint8),
        "t": values_of(224.0, 3.0).view(np.uint8),
    }
    to = {"d": np.zeros(4, np.uint8), "e": np.zeros(8, np.uint8)}
    oracle.execute(plan, source, to)
    assert to["e"].view(np.float32).tolist() == [1.0, float(np.float32(12) / np.float32(448))]
    assert to["d"].tolist() == [0x76, 0x7E, 0x00, 0xFE]  # 224, 448; 0, -448


def test_a_conversion_divides_by_the_destinations_scale() -> None:
    shape = {"N": 1, "D": 2}
    src = operand("latent", "bf16", "s", shape)
    dst = operand("latent", "e4m3", "d", shape, values=f32(2.0))
    conversion = Conversion("latent", 0, "none", "fp8_per_tensor", (src,), (dst,))
    plan = planned(conversions=(conversion,), sequences=(Sequence(0, 0, 1),))
    to = np.zeros(2, np.uint8)
    oracle.execute(plan, {"s": np.array([0x4000, 0x4080], np.uint16).view(np.uint8)}, {"d": to})
    assert to.tolist() == [0x38, 0x40]


def test_elements_that_begin_inside_of_a_byte_are_not_read_in_passing() -> None:
    src = operand("k", "e4m3", "s", {"H": 1, "N": 1, "D": 2})
    conversion = Conversion("k", 0, "none", "none", (src._replace(bit=4),), (src,))
    plan = planned(conversions=(conversion,), sequences=(Sequence(0, 0, 1),))
    with pytest.raises(AssertionError, match="elements of 8 bits begin at a multiple of 8"):
        oracle.execute(plan, {"s": np.zeros(9, np.uint8)}, {"s": np.zeros(9, np.uint8)})
