"""Records of engines, written out by hand, to bf16 and back."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from transload_kernels import (
    DSV4,
    DSV41,
    FP8_DS_MLA,
    BadArgument,
    TokenRecord,
    bf16_to_fp8,
    bf16_to_records,
    bf16_to_token_head,
    fp8_to_bf16,
    records_to_bf16,
    token_head_to_bf16,
)
from transload_kernels.formats import ElementType

TOKENS = 3
ZERO = torch.tensor([0])
FILL = 0xA5

Bytes = NDArray[np.uint8]


def as_bf16(values: Any) -> Bytes:
    """By the definition for values that bf16 holds exactly."""
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    assert not np.any(bits & 0xFFFF)
    return (bits >> 16).astype(np.uint16).view(np.uint8).reshape(*bits.shape[:-1], -1)


ONE, TWO, MINUS_448 = 0x38, 0x40, 0xFE
"""Patterns of e4m3."""


def page_656() -> tuple[Bytes, Bytes]:
    """A page of 3 tokens, and its rows in bf16."""
    page = np.zeros((TOKENS, 656), np.uint8)
    rows = np.zeros((TOKENS, 576), np.float32)
    for token in range(TOKENS):
        for group in range(4):
            at, scale = 128 * group, 2.0 ** (group - token)
            page[token, at : at + 128] = ONE
            page[token, at + 7] = MINUS_448
            rows[token, at : at + 128] = scale
            rows[token, at + 7] = -448 * scale
            page[token, 512 + 4 * group :][:4] = np.array([scale], np.float32).view(np.uint8)
        rope = np.arange(64, dtype=np.float32) + token
        page[token, 528:] = as_bf16(rope)
        rows[token, 512:] = rope
    return page.reshape(-1), as_bf16(rows).reshape(-1)


def page_584() -> tuple[Bytes, Bytes]:
    """As above: 576 bytes of each token, then 8 of each."""
    page = np.full(TOKENS * 584, FILL, np.uint8)
    data, scales = page[: TOKENS * 576].reshape(TOKENS, 576), page[TOKENS * 576 :].reshape(-1, 8)
    rows = np.zeros((TOKENS, 512), np.float32)
    for token in range(TOKENS):
        for group in range(7):
            at = 64 * group
            data[token, at : at + 64] = TWO
            data[token, at + 5] = MINUS_448
            scales[token, group] = 127 + group - token
            rows[token, at : at + 64] = 2 * 2.0 ** (group - token)
            rows[token, at + 5] = -448 * 2.0 ** (group - token)
        rope = 0.5 * np.arange(64, dtype=np.float32) - token
        data[token, 448:] = as_bf16(rope)
        rows[token, 448:] = rope
    return page, as_bf16(rows).reshape(-1)


def page_528() -> tuple[Bytes, Bytes]:
    """As above: 512 bytes of each token, then 16 of each."""
    page = np.zeros(TOKENS * 528, np.uint8)
    data, scales = page[: TOKENS * 512].reshape(TOKENS, 512), page[TOKENS * 512 :].reshape(-1, 16)
    rows = np.zeros((TOKENS, 512), np.float32)
    for token in range(TOKENS):
        for group in range(16):
            at = 32 * group
            data[token, at : at + 32] = ONE
            data[token, at + 31] = MINUS_448
            scales[token, group] = 120 + group + token
            rows[token, at : at + 32] = 2.0 ** (group + token - 7)
            rows[token, at + 31] = -448 * 2.0 ** (group + token - 7)
    return page, as_bf16(rows).reshape(-1)


PAGES = {
    "656": (FP8_DS_MLA, page_656),
    "584": (DSV4, page_584),
    "528": (DSV41, page_528),
}


@pytest.mark.parametrize("implementation", ["reference", "torch", "cpu"])
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_these_rows_and_back(name: str, implementation: str) -> None:
    record, make = PAGES[name]
    page, rows = make()
    # Two pages behind one another; the second is read into the first place and back.
    pages = torch.from_numpy(np.concatenate((np.zeros_like(page), page)))
    out = torch.full((len(rows) + 9,), FILL, dtype=torch.uint8)
    offset = torch.tensor([len(page)])
    records_to_bf16(record, out, pages, ZERO, offset, TOKENS, implementation=implementation)
    np.testing.assert_array_equal(out[: len(rows)].numpy(), rows)
    assert out[len(rows) :].tolist() == [FILL] * 9
    back = torch.full((len(page) + 9,), FILL, dtype=torch.uint8)
    bf16_to_records(record, back, out, ZERO, ZERO, TOKENS, implementation=implementation)
    np.testing.assert_array_equal(back[: len(page)].numpy(), page)
    assert back[len(page) :].tolist() == [FILL] * 9


@pytest.mark.parametrize("name", PAGES)
def test_part_of_a_page_keeps_the_places_of_its_scales(name: str) -> None:
    record, make = PAGES[name]
    page, rows = make()
    out = torch.full((len(rows),), FILL, dtype=torch.uint8)
    records_to_bf16(record, out, torch.from_numpy(page), ZERO, ZERO, TOKENS, num_tokens=2)
    done = 2 * record.bf16_bytes
    np.testing.assert_array_equal(out[:done].numpy(), rows[:done])
    assert set(out[done:].tolist()) == {FILL}


def test_sizes_of_records_are_their_names() -> None:
    assert [each.page_bytes(1) for each in (FP8_DS_MLA, DSV4, DSV41)] == [656, 584, 528]
    assert [each.bf16_bytes for each in (FP8_DS_MLA, DSV4, DSV41)] == [1152, 1024, 1024]


@pytest.mark.parametrize("record", [FP8_DS_MLA, DSV4, DSV41])
def test_nothing_is_written_where_a_part_is_outside(record: TokenRecord) -> None:
    pages = torch.zeros(record.page_bytes(TOKENS), dtype=torch.uint8)
    rows = torch.zeros(TOKENS * record.bf16_bytes - 1, dtype=torch.uint8)
    before = rows.clone()
    with pytest.raises(BadArgument, match=r"^dst_offsets: bytes"):
        records_to_bf16(record, rows, pages, ZERO, ZERO, TOKENS)
    assert torch.equal(rows, before)
    with pytest.raises(BadArgument, match=r"^src_offsets: bytes"):
        bf16_to_records(record, pages, rows, ZERO, ZERO, TOKENS)
    assert not pages.any()


def test_more_tokens_than_a_page_has_are_refused() -> None:
    memory = torch.zeros(9999, dtype=torch.uint8)
    with pytest.raises(BadArgument, match=r"^num_tokens: 4, a page holds 3"):
        records_to_bf16(DSV4, memory, memory, ZERO, ZERO, TOKENS, num_tokens=4)


def test_one_scale_for_all_both_ways() -> None:
    rows = torch.from_numpy(as_bf16([[2.0, 4.0, -896.0]]).reshape(-1))
    fp8 = torch.zeros(3, dtype=torch.uint8)
    bf16_to_fp8(fp8, rows, ZERO, ZERO, 3, 2.0)
    assert fp8.tolist() == [ONE, TWO, MINUS_448]
    out = torch.zeros_like(rows)
    fp8_to_bf16(out, fp8, ZERO, ZERO, 3, 2.0)
    assert torch.equal(out, rows)


@pytest.mark.parametrize(
    ("element", "stored"),
    [
        ("i8", (127, 0x81, 0, 64)),
        ("e4m3", (0x7E, 0xFE, 0x00, 0x76)),
        ("u4", (0x0F, 0xC8)),
    ],
)
def test_each_head_of_each_token_has_its_scale_behind_it(
    element: ElementType, stored: tuple[int, ...]
) -> None:
    values = as_bf16(np.array([[127.0, -127.0, 0.0, 64.0]] * 2))
    rows = torch.from_numpy(values.reshape(-1))
    pitch = len(stored) + 4
    cells = torch.full((2 * pitch,), FILL, dtype=torch.uint8)
    bf16_to_token_head(cells, rows, ZERO, ZERO, 4, ((2, 8, pitch),), element)
    assert cells.view(2, pitch)[:, :-4].tolist() == [list(stored)] * 2
    out = torch.zeros_like(rows)
    token_head_to_bf16(out, cells, ZERO, ZERO, 4, ((2, pitch, 8),), element)
    came = out.view(torch.bfloat16).float().view(2, 4)
    step = {"i8": 1.0, "e4m3": 4.0, "u4": 17.0}[element]
    assert (came - torch.tensor([127.0, -127.0, 0.0, 64.0])).abs().max() < step
