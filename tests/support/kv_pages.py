"""Recorded pages of an engine's cache, read by nothing but a builder's descriptor."""

import base64
import json
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from support.abi_addresses import bit_of
from transload_abi import oracle
from transload_abi.builders import Interior, vllm
from transload_abi.builders.vllm_layout import strides
from transload_abi.builders.vllm_read import read_spec
from transload_abi.types import Descriptor, Model, Role, Rope

FOLDER: Final = Path(__file__).parents[1] / "protocol/vectors/abi/vllm-0.32.0"
MODEL: Final = Model(name="tiny", num_layers=2, rope=Rope(state="applied"))
UNTOUCHED: Final = 0xA5


def cases(*files: str) -> list[dict[str, Any]]:
    """All cases of these recordings."""
    return [case for file in files for case in json.loads((FOLDER / file).read_text())]


def unpacked(text: str, dtype: str) -> NDArray[Any]:
    return np.frombuffer(zlib.decompress(base64.b64decode(text)), dtype)


def pool_of(case: dict[str, Any]) -> NDArray[np.uint8]:
    return unpacked(case["pool"], "u1")


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
    """Values of what was written: by token, then as the role has axes, without `N`."""
    memory, blocks = {"kv": pool_of(case)}, range(case["num_blocks"])
    values = oracle.read_values(d, memory, d.groups[0].id, role, blocks)
    return np.asarray(_by_token(case, d, role, values), np.float32)


def elements(case: dict[str, Any], d: Descriptor, role: str) -> NDArray[Any]:
    """Their bits, likewise."""
    memory, blocks = {"kv": pool_of(case)}, range(case["num_blocks"])
    bits = oracle.read_elements(d, memory, d.groups[0].id, role, blocks)
    return np.ascontiguousarray(_by_token(case, d, role, bits))


def written(case: dict[str, Any], role: str) -> NDArray[np.float32]:
    shape, text = case["written"][role]
    return unpacked(text, "<f4").reshape(shape)


def untouched_of(
    case: dict[str, Any], d: Descriptor, whole: Sequence[str] = ()
) -> NDArray[np.bool_]:
    """The pool's bytes that no described element of a written slot is in.

    Args:
        case: The recording.
        d: Its descriptor.
        whole: Roles that are written in all slots of the layer.
    """
    is_free = np.ones(pool_of(case).size, np.bool_)
    tokens = d.groups[0].tokens_per_block
    for role in d.groups[0].roles:
        slots = range(case["num_blocks"] * tokens) if role.role in whole else case["slots"]
        for slot in slots:
            block, token = divmod(slot, tokens)
            _take(is_free, d, role, case["layer"], block, token)
    return is_free


def _take(
    is_free: NDArray[np.bool_], d: Descriptor, role: Role, layer: int, block: int, token: int
) -> None:
    size = max(role.bits // 8, 1)
    axis = "G" if "G" in role.shape else "D"
    for head in range(role.shape.get("H", 1)):
        for element in range(role.shape.get(axis, 1)):
            index = {"H": head, "N": token, axis: element}
            _, bit = bit_of(d.groups[0], role.role, layer=layer, block=block, **index)
            is_free[bit // 8 : bit // 8 + size] = False


def _by_token(case: dict[str, Any], d: Descriptor, role: str, values: NDArray[Any]) -> Any:
    """`values` has layers, blocks, and the role's axes: with heads, `N` is behind them."""
    which = d.groups[0].role(role)
    assert which is not None
    by_token = np.moveaxis(values[case["layer"]], 2 if "H" in which.shape else 1, 1)
    return by_token.reshape(-1, *by_token.shape[2:])[case["slots"]]
