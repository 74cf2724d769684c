"""Pages that vLLM's backends wrote, decoded by nothing but the builder's descriptor.

Recorded by `tools/record_kv_pages.py`: known keys and values went in, through each backend's own
writer. So a builder cannot be wrong about a format here and still agree with itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from support.kv_pages import (
    UNTOUCHED,
    cases,
    decoded,
    described,
    elements,
    pool_of,
    untouched_of,
    written,
)

CASES = cases("pages-cpu.json", "pages-triton.json")

each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES])


def is_scaled_by_row(case: dict[str, Any]) -> bool:
    return str(case["spec"]["kv_quant_mode"]).endswith("PER_TOKEN_HEAD")


def test_every_writer_was_recorded() -> None:
    names = {case["name"].split("-")[0] for case in CASES}
    assert (len(CASES), names) == (21, {"cpu", "triton", "rocm"})


@each_case
def test_what_was_written_is_what_is_decoded(case: dict[str, Any]) -> None:
    d = described(case)
    for role in case["written"]:
        found, due = decoded(case, d, role), written(case, role)
        if case["spec"]["dtype"] == "torch.int8":  # nearest of 255 steps
            step = np.abs(due).max(axis=-1, keepdims=True) / 127
            assert np.all(np.abs(found - due) <= 0.501 * step)
            assert not np.array_equal(found, due)
        else:
            np.testing.assert_array_equal(found, due)


@pytest.mark.parametrize("case", [c for c in CASES if is_scaled_by_row(c)], ids=lambda c: c["name"])
def test_a_rows_scale_is_its_largest_value_in_parts(case: dict[str, Any]) -> None:
    d = described(case)
    largest = np.float32(127 if case["spec"]["kv_quant_mode"].startswith("INT8") else 448)
    for role in ("k", "v"):
        found = elements(case, d, f"{role}_scale").view(np.float32)
        due = np.abs(written(case, role)).max(axis=-1) / largest
        np.testing.assert_allclose(found, due, rtol=1e-6)


@each_case
def test_the_writer_touched_no_byte_that_is_not_described(case: dict[str, Any]) -> None:
    d, pool = described(case), pool_of(case)
    # The backend sets all scales once, to one.
    is_free = untouched_of(case, d, ("k_scale", "v_scale"))
    assert np.all(pool[is_free] == UNTOUCHED)
    assert np.count_nonzero(pool[~is_free] != UNTOUCHED) > 0.9 * np.count_nonzero(~is_free)


@pytest.mark.parametrize(
    ("name", "wrong"),
    [
        ("cpu-bf16", {"name": "packed"}),
        ("cpu-kernel-blocks", {"kernel_block_size": 0}),
        ("triton-bf16-LBHNC", {"name": "cpu"}),
        ("triton-fp8", {"float8": "e5m2"}),
        ("cpu-e5m2", {"float8": "e4m3"}),
        ("cpu-latents", {"kv_lora_rank": 16}),
    ],
)
def test_another_interior_decodes_to_something_else(name: str, wrong: dict[str, Any]) -> None:
    case = next(case for case in CASES if case["name"] == name)
    d = described(case, **wrong)
    first = next(iter(case["written"]))
    found = decoded(case, d, first)
    assert found.shape != written(case, first).shape or not np.array_equal(
        found, written(case, first)
    )
