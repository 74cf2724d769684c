"""Elements at bit addresses against bytes that are written out here."""

import numpy as np
import pytest
from numpy.typing import NDArray

from transload_abi.errors import ProofFailed
from transload_abi.oracle_bits import gather, offsets, scatter


def pool(text: str) -> NDArray[np.uint8]:
    return np.frombuffer(bytes.fromhex(text), np.uint8).copy()


def at(*bits: int) -> NDArray[np.int64]:
    return np.array(bits, np.int64)


@pytest.mark.parametrize("dtype", ["e2m1", "u4"])
def test_the_even_one_of_two_nibbles_is_the_lower(dtype: str) -> None:
    read = gather(pool("2143"), at(0, 4, 8, 12), dtype)
    assert read.tolist() == [1, 2, 3, 4]
    assert read.dtype == np.uint8


def test_a_nibble_is_written_and_its_neighbour_stays() -> None:
    memory = pool("a5a5a5a5")
    scatter(memory, at(4, 8, 24, 28), np.array([1, 2, 3, 4], np.uint8), "e2m1")
    assert memory.tobytes().hex() == "15a2a543"


def test_nibbles_in_any_order_and_shape() -> None:
    memory = pool("00000000")
    bits = at(28, 0, 12, 4, 24, 8).reshape(2, 3)
    elements = np.array([1, 2, 3, 4, 5, 6], np.uint8).reshape(2, 3)
    scatter(memory, bits, elements, "u4")
    assert memory.tobytes().hex() == "42360015"
    assert np.array_equal(gather(memory, bits, "u4"), elements)


@pytest.mark.parametrize(
    ("dtype", "element"),
    [("u8", 0x21), ("ue8m0", 0x21), ("bf16", 0x4321), ("i64", 0x10FEDCBA98764321)],
)
def test_whole_bytes_begin_with_the_lowest(dtype: str, element: int) -> None:
    memory = pool("ff" + "21437698badcfe10" + "ff")
    assert gather(memory, at(8), dtype).tolist() == [element]
    other = pool("00" * 10)
    scatter(other, at(8), gather(memory, at(8), dtype), dtype)
    assert gather(other, at(8), dtype).tolist() == [element]


@pytest.mark.parametrize(("dtype", "bit"), [("e2m1", 2), ("u8", 4), ("f32", 12)])
def test_an_element_begins_at_a_multiple_of_its_bits_or_a_byte(dtype: str, bit: int) -> None:
    with pytest.raises(AssertionError, match="begin at a multiple of"):
        gather(pool("00" * 8), at(bit), dtype)


@pytest.mark.parametrize("bit", [-4, 16])
def test_a_nibble_outside_of_its_pool_is_our_fault(bit: int) -> None:
    with pytest.raises(ProofFailed, match="of a pool that has 2 bytes"):
        gather(pool("0000"), at(bit), "u4")


def test_digits_of_two_axes_may_interleave() -> None:
    # Four tokens and four groups in tiles of two by two, tokens innermost.
    terms = (("N", 1, 2, 8), ("G", 1, 2, 16), ("N", 2, 2, 64), ("G", 2, 2, 32))
    found = offsets("latent_scale", {"N": 4, "G": 4}, terms) // 8
    assert found.tolist() == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
