"""Keys and values by a descriptor's terms: byte for byte what the oracle writes and reads."""

from multiprocessing.shared_memory import SharedMemory
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from support.abi_placements import PLACEMENTS, SHAPE, Shape, odd, sglang, vllm
from transload_abi import oracle
from transload_abi.floats import f32
from transload_abi.types import Codec, Descriptor, Owner, Param
from transload_engine.model.batch import Slots
from transload_engine.model.kv_cache import PagedCache

BLOCKS = [3, 1, 4]
FP8 = ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
DTYPES = ("f32", "f16", "bf16", *FP8)
SCALES = {"k": np.float32(0.3), "v": np.float32(7.0)}


def descriptor_of(name: str, dtype: str) -> Descriptor:
    """A placement of `abi_placements`, with scales where the dtype needs them."""
    found = PLACEMENTS[name](SHAPE._replace(dtype=dtype))
    if dtype not in FP8:
        return found
    scales: dict[str, Param] = {
        f"scales.{role}": [f32(float(scale))] * 2 for role, scale in SCALES.items()
    }
    codec = Codec("fp8_per_tensor", scales)
    groups = tuple(msgspec.structs.replace(group, codec=codec) for group in found.groups)
    return msgspec.structs.replace(found, groups=groups)


def numbers(shape: Shape, seed: int) -> NDArray[np.float32]:
    """Values of all sizes, `[layers, tokens, heads, size]`, some beyond what 8 bits hold."""
    generator = np.random.default_rng(seed)
    count = (shape.layers, len(BLOCKS) * shape.tokens, shape.heads, shape.size)
    values = generator.normal(size=count) * 10.0 ** generator.uniform(-5, 5, count)
    values[..., 0] = np.inf
    values[..., 1] = -np.inf
    values[..., 2] = -0.0
    return values.astype(np.float32)


def in_blocks(values: NDArray[np.float32], shape: Shape) -> NDArray[np.float32]:
    """As the oracle has them: `[layers, blocks, heads, tokens of a block, size]`."""
    split = values.reshape(shape.layers, len(BLOCKS), shape.tokens, shape.heads, shape.size)
    return split.transpose(0, 1, 3, 2, 4)


def all_slots(shape: Shape) -> Slots:
    tokens = torch.arange(len(BLOCKS) * shape.tokens)
    return Slots(torch.tensor(BLOCKS)[tokens // shape.tokens], tokens % shape.tokens)


def bytes_of(cache: PagedCache) -> oracle.Memory:
    return {pool: memory.numpy() for pool, memory in cache.memory.items()}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_what_is_written_is_what_the_oracle_writes(name: str, dtype: str) -> None:
    descriptor, due = descriptor_of(name, dtype), {"k": numbers(SHAPE, 1), "v": numbers(SHAPE, 2)}
    cache, wanted = PagedCache(descriptor), oracle.blank(descriptor, 0)
    for role, values in due.items():
        blocks = in_blocks(values, SHAPE)
        oracle.write_values(descriptor, wanted, "attention", role, BLOCKS, blocks)
    for layer in range(SHAPE.layers):
        keys, values = (torch.from_numpy(due[role][layer].copy()) for role in "kv")
        cache.write(layer, all_slots(SHAPE), keys, values)
    for pool, memory in bytes_of(cache).items():
        assert np.array_equal(memory, wanted[pool])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", PLACEMENTS)
def test_what_is_read_is_what_the_oracle_reads(name: str, dtype: str) -> None:
    descriptor = descriptor_of(name, dtype)
    cache = PagedCache(descriptor)
    for seed, role in enumerate("kv"):
        values = in_blocks(numbers(SHAPE, seed), SHAPE)
        oracle.write_values(descriptor, bytes_of(cache), "attention", role, BLOCKS, values)
    for layer in range(SHAPE.layers):
        read = dict(zip("kv", cache.read(layer, torch.tensor(BLOCKS), 19), strict=True))
        for role, found in read.items():
            values = oracle.read_values(descriptor, bytes_of(cache), "attention", role, BLOCKS)
            wanted = values[layer].transpose(0, 2, 1, 3).reshape(-1, SHAPE.heads, SHAPE.size)[:19]
            assert np.array_equal(found.numpy(), wanted)


@pytest.mark.parametrize("name", PLACEMENTS)
@pytest.mark.parametrize("num_blocks", [1, 2])
def test_what_is_read_lies_alike_whatever_the_placement(name: str, num_blocks: int) -> None:
    cache = PagedCache(descriptor_of(name, "f32"))
    for found in cache.read(1, torch.arange(num_blocks), 8 * num_blocks - 1):
        assert found.is_contiguous()


def test_single_tokens_leave_their_neighbours_alone() -> None:
    cache = PagedCache(odd())
    cache.memory["odd"].fill_(0xA5)
    before = cache.memory["odd"].clone()
    slots = Slots(torch.tensor([2, 4]), torch.tensor([7, 0]))
    ones = torch.ones(2, SHAPE.heads, SHAPE.size)
    cache.write(1, slots, ones, ones)
    assert int((cache.memory["odd"] != before).sum()) == 2 * 2 * SHAPE.heads * SHAPE.size * 2
    keys, values = cache.read(1, torch.tensor([2, 4]), 9)
    assert keys[7:].eq(1).all()
    assert values[7:].eq(1).all()
    assert not keys[:7].eq(1).any()


def test_addresses_that_are_no_multiples_of_an_element() -> None:
    descriptor = odd(SHAPE._replace(dtype="f32"))
    (group,) = descriptor.groups
    (place,) = group.places
    shifted = msgspec.structs.replace(place, offset=place.offset - 3)
    group = msgspec.structs.replace(group, places=(shifted,))
    descriptor = msgspec.structs.replace(descriptor, groups=(group,))
    cache, wanted = PagedCache(descriptor), oracle.blank(descriptor, 0)
    values = numbers(SHAPE, 1)
    for role in "kv":
        blocks = in_blocks(values, SHAPE)
        oracle.write_values(descriptor, wanted, "attention", role, BLOCKS, blocks)
    for layer in range(SHAPE.layers):
        tokens = torch.from_numpy(values[layer].copy())
        cache.write(layer, all_slots(SHAPE), tokens, tokens)
        assert torch.equal(cache.read(layer, torch.tensor(BLOCKS), 24)[0], tokens)
    assert np.array_equal(cache.memory["odd"].numpy(), wanted["odd"])


def in_two_groups(whole: Descriptor) -> Descriptor:
    """The same placement of two layers, with a group for each."""
    (group,) = whole.groups
    groups = []
    for layer in range(2):
        places = tuple(
            msgspec.structs.replace(
                place, offset=place.offset + layer * place.layer_stride, layer_stride=0
            )
            for place in group.places
        )
        groups.append(
            msgspec.structs.replace(group, id=f"layer{layer}", layers=(layer,), places=places)
        )
    return msgspec.structs.replace(whole, groups=tuple(groups))


def test_layers_may_be_in_several_groups() -> None:
    one, two = PagedCache(odd()), PagedCache(in_two_groups(odd()))
    for layer, values in enumerate(numbers(SHAPE, 1)):
        for cache in (one, two):
            tokens = torch.from_numpy(values.copy())
            cache.write(layer, all_slots(SHAPE), tokens, -tokens)
    assert torch.equal(one.memory["odd"], two.memory["odd"])


def test_groups_of_different_blocks_are_refused() -> None:
    descriptor = in_two_groups(odd())
    first, second = descriptor.groups
    second = msgspec.structs.replace(second, tokens_per_block=16)
    descriptor = msgspec.structs.replace(descriptor, groups=(first, second))
    with pytest.raises(ValueError, match=r"^blocks of different lengths: \[8, 16\]$"):
        PagedCache(descriptor)


def test_memory_of_somebody_else_is_used_as_it_is() -> None:
    descriptor = sglang()
    shared = {pool.id: SharedMemory(create=True, size=pool.num_bytes) for pool in descriptor.pools}
    try:
        cache = PagedCache(descriptor, {name: memory.buf for name, memory in shared.items()})
        ones = torch.ones(1, SHAPE.heads, SHAPE.size)
        cache.write(0, Slots(torch.tensor([2]), torch.tensor([0])), ones, ones)
        again = PagedCache(descriptor, {name: memory.buf for name, memory in shared.items()})
        assert torch.equal(again.read(0, torch.tensor([2]), 1)[0], ones)
        del cache, again
    finally:
        for memory in shared.values():
            memory.close()
            memory.unlink()


@pytest.mark.parametrize(
    ("buffer", "complaint"),
    [
        (bytearray(7), r"pool 'odd' needs \d+ writable bytes; its buffer has 7, writable"),
        (bytes(10**6), r"pool 'odd' needs \d+ writable bytes; its buffer has 1000000, read-only"),
    ],
)
def test_memory_that_does_not_do_is_refused(buffer: Any, complaint: str) -> None:
    with pytest.raises(ValueError, match=f"^{complaint}$"):
        PagedCache(odd(), {"odd": buffer})


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"kind": "sliding_window", "window": 8}, "only blocks of all tokens, of one table"),
        ({"table": 1}, "only blocks of all tokens, of one table"),
        ({"tokens_per_state": (2, 1)}, "only blocks of all tokens, of one table"),
        ({"owner": Owner(heads=(0, 4, 8))}, "only whole models"),
        ({"opaque": "somebody"}, "only known bytes, and these are opaque"),
        ({"codec": Codec("per_token_head")}, "codec 'per_token_head' is none of"),
    ],
)
def test_a_cache_that_this_engine_does_not_have_is_refused(
    change: dict[str, Any], complaint: str
) -> None:
    descriptor = vllm("LBHNC")
    group = msgspec.structs.replace(descriptor.groups[0], **change)
    with pytest.raises(ValueError, match=f"^group 'attention': {complaint}"):
        PagedCache(msgspec.structs.replace(descriptor, groups=(group,)))
