"""Descriptors as literal bytes, and the rules of both encodings that bytes show."""

import json
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from support.abi_placements import PLACEMENTS, SHAPE, vllm
from transload_abi.canonical import canonical
from transload_abi.errors import Contradiction, LimitExceeded, MalformedDescriptor, UnknownPart
from transload_abi.packed import unpack
from transload_abi.text import (
    decode_json,
    decode_msgpack,
    encode_json,
    encode_msgpack,
    pretty_json,
    read,
)
from transload_abi.tree import inspect
from transload_abi.types import Descriptor, Group, Model, Place, Pool, Producer, Role, Rope

SMALL = Descriptor(
    abi="kvabi/1",
    model=Model('say "é"\\', 1, Rope("unknown")),
    pools=(Pool("p", "host", 24, 2),),
    groups=(
        Group(
            id="g",
            kind="recurrent",
            layers=(0,),
            tokens_per_block=300,
            tokens_per_state=(300, 1),
            places=(Place(("p",), 12),),
            roles=(
                Role("ssm", "f32", 32, {"N": 1, "D": 2}, (("D", 1, 2, 32),), 32),
                Role("conv", "f32", 32, {"N": 1, "D": 1}),
            ),
        ),
    ),
)
SMALL_JSON = (
    '{"abi":"kvabi/1","groups":[{"id":"g","kind":"recurrent","layers":[0],'
    '"places":[{"block_stride":12,"pools":["p"]}],"roles":[{"bits":32,"dtype":"f32","role":"conv",'
    '"shape":{"D":1,"N":1}},{"base_bits":32,"bits":32,"dtype":"f32","role":"ssm",'
    '"shape":{"D":2,"N":1},"terms":[["D",1,2,32]]}],"tokens_per_block":300,'
    '"tokens_per_state":[300,1]}],"model":{"name":"say \\"é\\"\\\\","num_layers":1,'
    '"rope":{"state":"unknown"}},"pools":[{"id":"p","memory":"host","num_blocks":2,"num_bytes":24}]}'
).encode()
SMALL_MSGPACK = bytes.fromhex(
    "84a3616269a76b766162692f31a667726f75707391"
    "87a26964a167a46b696e64a9726563757272656e74a66c61796572739100"
    "a6706c616365739182ac626c6f636b5f7374726964650ca5706f6f6c7391a170"
    "a5726f6c65739284a46269747320a56474797065a3663332a4726f6c65a4636f6e76"
    "a5736861706582a14401a14e01"
    "86a9626173655f6269747320a46269747320a56474797065a3663332a4726f6c65a373736d"
    "a5736861706582a14402a14e01a57465726d739194a144010220"
    "b0746f6b656e735f7065725f626c6f636bcd012cb0746f6b656e735f7065725f737461746592cd012c01"
    "a56d6f64656c83a46e616d65a97361792022c3a9225caa6e756d5f6c617965727301"
    "a4726f706581a57374617465a7756e6b6e6f776e"
    "a5706f6f6c739184a26964a170a66d656d6f7279a4686f7374aa6e756d5f626c6f636b7302a96e756d5f627974657318"
)


def test_the_bytes_of_both_encodings() -> None:
    assert encode_json(SMALL) == SMALL_JSON
    assert encode_msgpack(SMALL) == SMALL_MSGPACK
    assert read(SMALL_JSON) == read(SMALL_MSGPACK) == canonical(SMALL)


@pytest.mark.parametrize("name", PLACEMENTS)
def test_the_known_placements_come_back(name: str) -> None:
    descriptor = PLACEMENTS[name](SHAPE)
    assert read(encode_json(descriptor)) == canonical(descriptor)
    assert read(encode_msgpack(descriptor)) == canonical(descriptor)


def test_people_read_the_same() -> None:
    text = pretty_json(SMALL)
    assert text.startswith('{\n "abi": "kvabi/1",\n "groups": [\n  {\n   "id": "g",')
    assert read(text.encode()) == canonical(SMALL)


def test_decoding_neither_checks_nor_reorders() -> None:
    impossible = replace(SMALL, pools=(replace(SMALL.pools[0], align=3),))
    tree = msgspec.to_builtins(impossible)
    assert decode_json(json.dumps(tree).encode()) == impossible
    assert decode_msgpack(msgspec.msgpack.encode(tree, order="sorted")) == impossible
    for data in (encode_json(impossible), encode_msgpack(impossible)):
        with pytest.raises(Contradiction, match="power of two"):
            read(data)


def _tree(**changes: Any) -> Any:
    return {**msgspec.to_builtins(SMALL), **changes}


@pytest.mark.parametrize(
    ("place", "is_dropped"),
    [
        ((), True),
        (("model",), True),
        (("model", "rope"), True),
        (("producer",), True),
        (("pools", 0), True),
        (("groups", 0), True),
        (("groups", 0, "owner"), True),
        (("groups", 0, "owner", "tokens"), True),
        (("groups", 0, "codec"), True),
        (("groups", 0, "places", 0), True),
        (("groups", 0, "roles", 0), True),
        (("groups", 0, "roles", 0, "shape"), False),
        (("groups", 0, "codec", "params"), False),
        (("model", "rope", "params"), False),
    ],
)
def test_extensions_are_dropped_where_fields_stand(
    place: tuple[str | int, ...], is_dropped: bool
) -> None:
    tree = _tree()
    at = tree
    for step in place:
        at = at[step]
    at["x_mine"] = 7
    decoded = decode_json(json.dumps(tree).encode())
    assert (decoded == SMALL) is is_dropped
    assert decode_msgpack(msgspec.msgpack.encode(tree, order="sorted")) == decoded


def test_the_version_is_judged_before_anything_else() -> None:
    with pytest.raises(UnknownPart, match=r"^abi: expected 'kvabi/1', got 'kvabi/9'$"):
        read(b'{"pools": 1.5, "what": {"a": 1, "a": "\\ud800"}, "abi": "kvabi/9"}')


@pytest.mark.parametrize("is_list", [True, False])
def test_documents_nest_so_deep_and_no_deeper(is_list: bool) -> None:
    def nested(depth: int) -> Any:
        value: Any = 1
        for _ in range(depth - 1):
            value = [value] if is_list else {"a": value}
        return _tree(x_deep=value)

    def both(tree: Any) -> list[tuple[Callable[[bytes], Descriptor], bytes]]:
        packed = msgspec.msgpack.encode(tree, order="sorted")
        return [(decode_json, json.dumps(tree).encode()), (decode_msgpack, packed)]

    inspect(json.loads(json.dumps(nested(12))))
    for decode, data in both(nested(12)):
        assert decode(data) == SMALL
    with pytest.raises(LimitExceeded, match="nest deeper than 12"):
        inspect(json.loads(json.dumps(nested(13))))
    for decode, data in both(nested(13)):
        with pytest.raises(LimitExceeded, match="deeper than 12"):
            decode(data)


def test_the_first_byte_tells_the_encoding() -> None:
    with pytest.raises(MalformedDescriptor, match="byte 0 is not UTF-8"):
        read(SMALL_MSGPACK[1:])
    assert read(b" \n" + SMALL_JSON + b"\n") == canonical(SMALL)
    with pytest.raises(MalformedDescriptor, match="not UTF-8"):
        decode_json(SMALL_MSGPACK)


@pytest.mark.parametrize(
    ("descriptor", "error"),
    [
        (replace(SMALL, producer=Producer("\ud800")), MalformedDescriptor),
        (replace(SMALL, producer=Producer("a\0")), MalformedDescriptor),
        (replace(SMALL, producer=Producer("a" * 513)), LimitExceeded),
        (replace(SMALL, pools=(replace(SMALL.pools[0], num_bytes=1 << 53),)), LimitExceeded),
        (replace(SMALL, pools=(replace(SMALL.pools[0], align=-1),)), LimitExceeded),
        (
            replace(SMALL, model=replace(SMALL.model, rope=Rope("none", {"é": 1}))),
            MalformedDescriptor,
        ),
    ],
)
def test_nothing_is_written_that_no_reader_takes(
    descriptor: Descriptor, error: type[Exception]
) -> None:
    for encode in (encode_json, encode_msgpack, pretty_json):
        with pytest.raises(error):
            encode(descriptor)


def test_fields_at_their_default_are_left_out_at_every_level() -> None:
    text = encode_json(vllm("LBHNC")).decode()
    assert '"owner":{"heads":[0,4,4]}' in text
    for absent in ("codec", "producer", "endian", "tokens_per_state", "window", "replica", "table"):
        assert f'"{absent}"' not in text
    assert '"null_block":0' in text


SHORTEST = [
    (0, "00"),
    (127, "7f"),
    (128, "cc80"),
    (255, "ccff"),
    (256, "cd0100"),
    (65535, "cdffff"),
    (65536, "ce00010000"),
    (2**32 - 1, "ceffffffff"),
    (2**32, "cf0000000100000000"),
    (2**64 - 1, "cfffffffffffffffff"),
    (-1, "ff"),
    (-32, "e0"),
    (-33, "d0df"),
    (-128, "d080"),
    (-129, "d1ff7f"),
    (-32768, "d18000"),
    (-32769, "d2ffff7fff"),
    (-(2**31), "d280000000"),
    (-(2**31) - 1, "d3ffffffff7fffffff"),
    ("", "a0"),
    ("a" * 31, "bf" + "61" * 31),
    ("a" * 32, "d920" + "61" * 32),
    ("a" * 256, "da0100" + "61" * 256),
    ("a" * 65536, "db00010000" + "61" * 65536),
    ([], "90"),
    ([0] * 15, "9f" + "00" * 15),
    ([0] * 16, "dc0010" + "00" * 16),
    ([0] * 65536, "dd00010000" + "00" * 65536),
    ({}, "80"),
    ({"a": None, "b": True, "c": False}, "83a161c0a162c3a163c2"),
    ({chr(97 + i): 0 for i in range(16)}, "de0010" + "".join(f"a1{97 + i:x}00" for i in range(16))),
]


@pytest.mark.parametrize(("tree", "data"), SHORTEST, ids=lambda each: str(each)[:20])
def test_messagepack_in_its_shortest_form(tree: Any, data: str) -> None:
    assert unpack(bytes.fromhex(data)) == tree


@pytest.mark.parametrize(
    "data",
    [
        "cc7f",
        "cd00ff",
        "ce0000ffff",
        "cf00000000ffffffff",
        "d000",
        "d0e0",
        "d1ff80",
        "d2ffff8000",
        "d3ffffffff80000000",
        "d91f" + "61" * 31,
        "da00ff" + "61" * 255,
        "dc000f" + "00" * 15,
        "dd0000ffff" + "00" * 65535,
        "de000f" + "".join(f"a1{97 + i:x}00" for i in range(15)),
        "82a16200a16100",
        "82a16100a16100",
    ],
    ids=lambda data: data[:12],
)
def test_messagepack_in_any_other_form(data: str) -> None:
    with pytest.raises(MalformedDescriptor, match=r"shorter form|another form|out of order"):
        unpack(bytes.fromhex(data))


def test_a_byte_order_mark_is_named() -> None:
    with pytest.raises(MalformedDescriptor, match=r"^a byte order mark is not allowed"):
        read(b"\xef\xbb\xbf" + encode_json(vllm("LBHNC")))
