"""vLLM's strides, against what its own functions answered (`tools/record_kv_specs.py`)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from transload_abi.builders.vllm_layout import LAYOUTS, strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.errors import Contradiction, UnknownPart

RECORDED = Path(__file__).parents[2] / "protocol/vectors/abi/vllm-0.32.0/specs.json"
SINGLE: list[dict[str, Any]] = json.loads(RECORDED.read_text())["single"]
CASES = [
    pytest.param(case, layout, id=f"{case['name']}-{layout}")
    for case in SINGLE
    for layout in LAYOUTS
]
FULL = {
    "class": "FullAttentionSpec",
    "block_size": 16,
    "num_kv_heads": 8,
    "head_size": 128,
    "dtype": "bfloat16",
}


def named(name: str) -> dict[str, Any]:
    return next(case for case in SINGLE if case["name"] == name)


def test_every_layout_was_recorded() -> None:
    assert len(SINGLE) > 20
    assert all(tuple(case["strides"]) == LAYOUTS for case in SINGLE)


@pytest.mark.parametrize("case", [pytest.param(case, id=case["name"]) for case in SINGLE])
def test_a_page_has_as_many_bytes_as_vllm_says(case: dict[str, Any]) -> None:
    assert read_spec(case["spec"]).page_bytes == case["page_size_bytes"]


@pytest.mark.parametrize(("case", "layout"), CASES)
def test_strides_are_vllms(case: dict[str, Any], layout: str) -> None:
    spec, due = read_spec(case["spec"]), case["strides"][layout]
    sizes = (case["num_layers"], case["num_blocks"], case["kernel_block_size"])
    if due is None:
        with pytest.raises(Contradiction, match="cannot hold pages that are padded"):
            strides(spec, layout, *sizes)
        return
    found = strides(spec, layout, *sizes)
    kernel_block = found.block // found.num_kernel_blocks
    assert [found.layer, kernel_block, found.slot, found.state, 1] == due


@pytest.mark.parametrize(("case", "layout"), CASES)
def test_given_strides_win_and_the_others_follow(case: dict[str, Any], layout: str) -> None:
    if case["strides"][layout] is None or case["kernel_block_size"]:
        return
    spec = read_spec(case["spec"])
    dense = strides(spec, layout, case["num_layers"], case["num_blocks"])
    again = strides(spec, layout, case["num_layers"], case["num_blocks"], 0, *dense[:2])
    assert again == dense


def test_heads_outside_of_blocks_follow_the_blocks_own_stride() -> None:
    found = strides(read_spec(FULL), "LHBNC", 2, 5, block_stride=9000)
    assert (found.block, found.slot, found.state) == (9000, 45000, 512)


@pytest.mark.parametrize(
    ("layout", "heads", "is_whole"),
    [
        ("LBHNC", 8, True),
        ("LBNHC", 8, True),
        ("BLHNC", 8, True),
        ("LHBNC", 8, False),
        ("BHLNC", 8, False),
        ("LHBNC", 1, True),
        ("BHLNC", 1, True),
    ],
)
def test_a_page_is_whole_where_no_head_is_outside_of_it(
    layout: str, heads: int, is_whole: bool
) -> None:
    spec = read_spec(FULL | {"num_kv_heads": heads})
    assert strides(spec, layout, 2, 5).is_whole is is_whole


def test_the_terms_of_tokens_step_over_kernel_blocks() -> None:
    found = strides(read_spec(FULL), "LBHNC", 2, 5, 4, block_stride=65536)
    assert found.states(4096) == (("N", 1, 4, 4096), ("N", 4, 4, 8 * 16384))


@pytest.mark.parametrize(
    ("layout", "block_stride"), [("LBHNC", 65792), ("BLHNC", 131072), ("LHBNC", 8192)]
)
def test_only_dense_blocks_are_cut_into_kernel_blocks(layout: str, block_stride: int) -> None:
    with pytest.raises(Contradiction, match="cannot be cut into 4 kernel blocks"):
        strides(read_spec(FULL), layout, 2, 5, 4, block_stride=block_stride)


def test_a_padded_page_is_not_cut() -> None:
    spec = read_spec(named("full-padded")["spec"])
    with pytest.raises(Contradiction, match="page_size_padded"):
        strides(spec, "LBHNC", 2, 5, 8)


@pytest.mark.parametrize("tokens", [3, 32])
def test_kernel_blocks_divide_the_block(tokens: int) -> None:
    with pytest.raises(Contradiction, match=f"{tokens} tokens do not divide blocks of 16"):
        strides(read_spec(FULL), "LBHNC", 2, 5, tokens)


def test_kernel_blocks_hold_whole_states() -> None:
    spec = read_spec(FULL | {"tokens_per_state": 4})
    assert strides(spec, "LBHNC", 2, 5, 8).kernel_states == 2
    with pytest.raises(Contradiction, match="2 tokens do not divide"):
        strides(spec, "LBHNC", 2, 5, 2)


def test_a_recurrent_state_is_not_cut() -> None:
    spec = read_spec(named("mamba")["spec"])
    found = strides(spec, "LBHNC", 2, 5, 16)
    assert (found.num_kernel_blocks, found.kernel_states) == (1, 1)


def test_a_layout_of_another_name_is_refused() -> None:
    with pytest.raises(UnknownPart, match="'NHD' is none of LBHNC, LBNHC"):
        strides(read_spec(FULL), "NHD", 2, 5)
