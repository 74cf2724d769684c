"""Pages of small elements, of scales for groups, and of nobody knows what, as people see them."""

import pytest
from msgspec.structs import replace

from support import abi_formats as formats
from support.abi_formats import FORMATS
from support.abi_pages import Field, Shape, cells, described
from transload_abi.picture import WIDTH, describe, page_map
from transload_abi.types import Codec, Descriptor

PICTURES: dict[str, tuple[Descriptor, str]] = {
    "int4": (
        formats.int4(),
        """\
  offset        bytes  role          type     head       token      element
  0x000000       64 B  k             u4       0          0          0-127
                                              ... 16 tokens, 136 B apart
                                              ... 8 heads, 2176 B apart
  0x000040        4 B  k_scale       f32      0          0
                                              ... 16 tokens, 136 B apart
                                              ... 8 heads, 2176 B apart
  0x000044       64 B  v             u4       0          0          0-127
                                              ... 16 tokens, 136 B apart
                                              ... 8 heads, 2176 B apart
  0x000084        4 B  v_scale       f32      0          0
                                              ... 16 tokens, 136 B apart
                                              ... 8 heads, 2176 B apart""",
    ),
    "a swizzle": (
        formats.nvfp4(is_swizzled=True),
        """\
  offset        bytes  role          type     head       token      element    group
  0x000000       64 B  k             e2m1     0          0          0-127
                                              ... 16 tokens, 64 B apart
                                              ... 8 heads, 1 KiB apart
  0x002000        8 B  k_group_scale e4m3     0          0                     0-7
                                              ... 16 tokens, 8 B apart
                                              ... 8 heads, 128 B apart
  0x002400       64 B  v             e2m1     0          0          0-127
                                              ... 16 tokens, 64 B apart
                                              ... 8 heads, 1 KiB apart
  0x004400        4 B  v_group_scale e4m3     0          0-3                   0
                                              ... 4 groups, 4 B apart
                                              ... 2 steps of 4 groups, 16 B apart
                                              ... 4 steps of 4 tokens, 32 B apart
                                              ... 8 heads, 128 B apart""",
    ),
    "scales in another order": (
        formats.ds_mla_352(),
        """\
  offset        bytes  role          type     token      element    group
  0x000000      256 B  latent        e2m1     0          0-511
                                              ... 64 tokens, 352 B apart
  0x000100       64 B  rope          e4m3     0          0-63
                                              ... 64 tokens, 352 B apart
  0x000140        8 B  latent_scale  e4m3     0                     0-28 by 4
                                              ... 4 groups, 8 B apart
                                              ... 64 tokens, 352 B apart""",
    ),
    "a region of elements, then one of scales, and pads": (
        formats.v4_c4(),
        """\
  offset        bytes  role          type     state      element    group
  0x000000      448 B  latent        e4m3     0          0-447
                                              ... 64 states, 576 B apart
  0x0001c0      128 B  rope          bf16     0          0-63
                                              ... 64 states, 576 B apart
  0x009000        7 B  latent_scale  ue8m0    0                     0-6
                                              ... 64 states, 8 B apart
                 63 B  pad                    between them
  0x0091ff       65 B  pad                    to the page's end""",
    ),
    "codes in bytes": (
        formats.turboquant(3, 4),
        """\
  offset        bytes  role          type     head       token      element
  0x000000       48 B  k_code        u8       0          0          0-47
                                              ... 16 tokens, 118 B apart
                                              ... 8 heads, 1888 B apart
  0x000030        2 B  k_norm        f16      0          0
                                              ... 16 tokens, 118 B apart
                                              ... 8 heads, 1888 B apart
  0x000032       64 B  v_code        u8       0          0          0-63
                                              ... 16 tokens, 118 B apart
                                              ... 8 heads, 1888 B apart
  0x000072        2 B  v_scale       f16      0          0
                                              ... 16 tokens, 118 B apart
                                              ... 8 heads, 1888 B apart
  0x000074        2 B  v_zero        f16      0          0
                                              ... 16 tokens, 118 B apart
                                              ... 8 heads, 1888 B apart""",
    ),
    "nobody knows what": (
        formats.opaque(),
        """\
  offset        bytes  role          type     element
  0x000000     64 KiB  page          u8       0-65535""",
    ),
}


@pytest.mark.parametrize("name", PICTURES)
def test_a_page_is_a_map(name: str) -> None:
    d, picture = PICTURES[name]
    assert page_map(d.groups[0]) == picture


def test_nibbles_that_begin_amid_a_byte_are_told_in_bits() -> None:
    fields = [Field("k", "u4", "D", 3), Field("v", "u4", "D", 3)]
    scales = [Field("k_scale", "f32"), Field("v_scale", "f32")]
    roles = [*cells(fields, [("H", 1), ("N", 1)]), *cells(scales, [("H", 1), ("N", 1)], 24)]
    d = described("full", roles, 11, Shape(1, 1), Codec("int4_zero_point"))
    _, k, v, *_ = page_map(d.groups[0]).splitlines()
    assert k == "  0x000000     12 bit  k             u4       0          0          0-2"
    assert v == "  0x000001.4   12 bit  v             u4       0          0          0-2"


def test_who_writes_what_nobody_knows_is_told() -> None:
    shown = describe(formats.opaque("engine 1.0"))
    assert "moved only as it is, nobody has shown what is inside: engine 1.0" in shown
    assert "nobody has shown" not in describe(formats.plain())


def test_of_digests_the_first_digits_are_told() -> None:
    shown = describe(formats.int4())
    assert (
        "codec int4_zero_point   rotation.k sha256:5a5a5a5a5a5a   rotation.v sha256:5a5a" in shown
    )
    assert "5a" * 7 not in shown


@pytest.mark.parametrize("name", FORMATS)
def test_no_line_of_any_format_is_wider_than_a_terminal(name: str) -> None:
    d = FORMATS[name][0]()
    far = replace(d, groups=(replace(d.groups[0], opaque="by someone " * 30),))
    for each in (d, far):
        assert max(map(len, describe(each).splitlines())) <= WIDTH
