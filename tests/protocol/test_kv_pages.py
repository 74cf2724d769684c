"""Pages that vLLM's backends wrote, decoded by nothing but the builder's descriptor.

Recorded by `tools/record_kv_pages.py`: known keys and values went in, through each backend's own
writer. So a builder cannot be wrong about a format here and still agree with itself.
"""

from __future__ import annotations

import base64
import json
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from support.abi_addresses import bit_of
from transload_abi import oracle
from transload_abi.builders import Interior, vllm
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.types import Descriptor, Model, Role, Rope

FOLDER = Path(__file__).parent / "vectors/abi/vllm-0.32.0"
CASES: list[dict[str, Any]] = [
    case
    for file in ("pages-cpu.json", "pages-triton.json")
    for case in json.loads((FOLDER / file).read_text())
]
MODEL = Model(name="tiny", num_layers=2, rope=Rope(state="applied"))
UNTOUCHED = 0xA5

each_case = pytest.mark.parametrize("case", [pytest.param(c, id=c["name"]) for c in CASES])


def unpacked(text: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def described(case: dict[str, Any], **interior: Any) -> Descriptor:
    """The pool, by the configuration that vLLM's engine would have for it alone."""
    names = [f"model.layers.{number}.self_attn.attn" for number in range(case["num_layers"])]
    spec = read_spec(case["spec"])
    dense = strides(spec, case["layout"], len(names), case["num_blocks"])
    tensor = {
        "size": spec.page_bytes * len(names) * case["num_blocks"],
        "layers": names,
        "layer_stride": dense.layer,
        "block_stride": dense.block,
    }
    config = {
        "num_blocks": case["num_blocks"],
        "kv_cache_tensors": [tensor],
        "kv_cache_groups": [{"layer_names": names, "kv_cache_spec": case["spec"]}],
    }
    k_scale, v_scale = case["scales"]
    facts = vllm.Facts(model=MODEL, scales=dict.fromkeys(names, (k_scale, v_scale)))
    chosen = Interior(**(case["interior"] | interior))
    return vllm.descriptor(config, facts=facts, interior=chosen, layout=case["layout"])


def decoded(case: dict[str, Any], d: Descriptor, role: str) -> NDArray[np.float32]:
    """`[token, head, element]`, or `[token, element]`, of what was written."""
    memory = {"kv": unpacked(case["pool"], "u1")}
    group = d.groups[0]
    blocks = range(case["num_blocks"])
    layer = oracle.read_values(d, memory, group.id, role, blocks)[case["layer"]]
    by_token = np.moveaxis(layer, -2, 1)  # blocks, N, (H,) D
    flat = by_token.reshape(-1, *by_token.shape[2:])
    return np.asarray(flat[case["slots"]], np.float32)


def written(case: dict[str, Any], role: str) -> NDArray[np.float32]:
    shape, text = case["written"][role]
    return unpacked(text, "<f4").reshape(shape)


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
    memory = {"kv": unpacked(case["pool"], "u1")}
    largest = np.float32(127 if case["spec"]["kv_quant_mode"].startswith("INT8") else 448)
    for role in ("k", "v"):
        bits = oracle.read_elements(
            d, memory, d.groups[0].id, f"{role}_scale", range(case["num_blocks"])
        )
        scales = np.moveaxis(bits[case["layer"]].view(np.float32), -1, 1)
        found = scales.reshape(-1, scales.shape[-1])[case["slots"]]
        due = np.abs(written(case, role)).max(axis=-1) / largest
        np.testing.assert_allclose(found, due, rtol=1e-6)


@each_case
def test_the_writer_touched_no_byte_that_is_not_described(case: dict[str, Any]) -> None:
    d = described(case)
    pool = unpacked(case["pool"], "u1")
    is_described = np.zeros(pool.size, np.bool_)
    tokens = d.groups[0].tokens_per_block
    for role in d.groups[0].roles:
        slots = case["slots"]
        if role.role.endswith("_scale"):  # the backend sets all of them once, to one
            slots = range(case["num_blocks"] * tokens)
        for slot in slots:
            mark(is_described, d, role, case["layer"], *divmod(slot, tokens))
    assert np.all(pool[~is_described] == UNTOUCHED)
    assert np.count_nonzero(pool[is_described] != UNTOUCHED) > 0.9 * np.count_nonzero(is_described)


def mark(
    is_described: NDArray[np.bool_], d: Descriptor, role: Role, layer: int, block: int, token: int
) -> None:
    """Sets the bytes of one token's elements."""
    size = role.bits // 8
    for head in range(role.shape.get("H", 1)):
        for element in range(role.shape.get("D", 1)):
            _, bit = bit_of(
                d.groups[0], role.role, layer=layer, block=block, H=head, N=token, D=element
            )
            is_described[bit // 8 : bit // 8 + size] = True


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
