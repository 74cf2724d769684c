r"""Records pages that vLLM's own backends wrote: known keys and values in, the pool's bytes out.

Runs with the engine's Python, once for each kind of writers; the second runs vLLM's Triton
kernels in Triton's interpreter, which a process has to start with::

    export PYTHONPATH=connector
    python tools/record_kv_pages.py cpu > $VECTORS/pages-cpu.json
    TRITON_INTERPRET=1 python tools/record_kv_pages.py triton > $VECTORS/pages-triton.json

where `VECTORS` is `tests/protocol/vectors/abi/vllm-0.32.0`. Packed caches are recorded by
`record_kv_packed.py`.

An answer is a list of cases. Each has the specification, the layout and the interior that a builder
takes, and what one layer of two was given: `slots` by token, `written` by role (`[token, head,
element]` of binary32, or `[token, element]`), and the pool afterwards, of which every byte was 0xA5
before. Arrays are little-endian, deflated, in base64.

**Not recorded, and why**

* 8-bit latents: the CUDA operator `concat_and_cache_mla` writes them, and the CPU wheel has none;
  its CPU backends take unquantised latents only.
* ROCm's own operator `reshape_and_cache`: not in the CPU wheel. Its planes are written here by the
  Triton kernel that ROCm's backend takes for layouts that the operator does not know.
* CPU pages of other instruction sets (`amx`, `neon`, `rvv`, `vxe`, `vsx`): this runs what the
  machine has; recorded were `vec` and `vec16` on x86-64 with AVX-512.
* Recurrent states: written by their kernels as whole tensors, there is no writer to give values to.
"""

import base64
import importlib
import json
import sys
import types
import zlib
from typing import Any, NamedTuple

from transload_abi.builders.vllm_read import plain

torch: Any = importlib.import_module("torch")

NUM_LAYERS, NUM_BLOCKS, LAYER, FILL = 2, 3, 1, 0xA5
HEADS, SIZE, NUM_TOKENS = 2, 32, 12


class Case(NamedTuple):
    """One page format.

    Attributes:
        interior: What a builder is told of it.
        cache_dtype: vLLM's name of the cache's format.
        largest: Keys and values are whole numbers of 16ths, up to so many; times the scale.
        kernel_block_size: Tokens; None: the block's.
        peak: The first element of each row, where above zero; scales by row follow from it.
    """

    name: str
    spec: Any
    layout: str
    interior: dict[str, Any]
    cache_dtype: str = "auto"
    largest: int = 127
    scales: tuple[float, float] = (1.0, 1.0)
    kernel_block_size: int | None = None
    peak: float = 0.0


def pack(tensor: Any) -> str:
    """A tensor's bytes."""
    raw = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return base64.b64encode(zlib.compress(raw, 9)).decode()


def numbers(case: Case, shape: tuple[int, ...], scale: float, dtype: Any) -> Any:
    """Values that the cache's elements hold exactly, but for 8-bit integers scaled by their row.

    So no rounding is recorded: Triton's interpreter loses the carry where it rounds a mantissa up
    to the next power of two (`interpreter.py:_convert_float` @ 3.9.0), as no GPU does.
    """
    whole = torch.randint(-case.largest, case.largest + 1, shape)
    values = whole.float() / 16 * scale
    if case.peak:
        values[..., 0] = case.peak
    return values.to(dtype)


def record(case: Case, write: Any, dtype: Any) -> dict[str, Any]:
    """One case: a pool of two layers, one of them written.

    Args:
        case: What to write.
        write: Takes the case, the layer's view, keys, values and slots.
        dtype: Of the keys and values that the model has.
    """
    is_latent = case.interior.get("kv_lora_rank") is not None
    rows = (NUM_TOKENS,) if is_latent else (NUM_TOKENS, HEADS)
    sizes = {"k": SIZE, "v": SIZE}
    if is_latent:
        sizes = {"latent": case.interior["kv_lora_rank"], "rope": 16}
    written = {
        role: numbers(case, (*rows, size), scale, dtype)
        for (role, size), scale in zip(sizes.items(), case.scales, strict=True)
    }
    return record_given(case, write, written)


def record_given(case: Case, write: Any, written: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The same, of values that are given by role; `more` is what else a reader needs."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    layout = kv.KVCacheLayout[case.layout]
    layer_stride, block_stride, *_ = kv.compute_layout_strides(
        case.spec, NUM_BLOCKS, NUM_LAYERS, layout
    )
    raw = torch.full((case.spec.page_size_bytes * NUM_BLOCKS * NUM_LAYERS,), FILL - 256).to(
        torch.int8
    )
    names = [f"model.layers.{number}.self_attn.attn" for number in range(NUM_LAYERS)]
    tensor = kv.KVCacheTensor(
        size=raw.numel(), layers=names, layer_stride=layer_stride, block_stride=block_stride
    )
    view = kv.create_kv_cache_views(
        raw, case.spec, NUM_BLOCKS, layout, tensor, case.kernel_block_size
    )[LAYER]
    # Across a block's end, in the last block, and backwards.
    slots = torch.arange(NUM_TOKENS) + case.spec.block_size * 2 - NUM_TOKENS // 2
    slots = slots.flip(0)
    write(case, view, *written.values(), slots)
    return {
        "name": case.name,
        "spec": plain(case.spec),
        "layout": case.layout,
        "interior": case.interior | {"kernel_block_size": case.kernel_block_size or 0},
        "num_layers": NUM_LAYERS,
        "num_blocks": NUM_BLOCKS,
        "layer": LAYER,
        "scales": case.scales,
        "slots": slots.tolist(),
        "written": {
            role: [list(values.shape), pack(values.float())] for role, values in written.items()
        },
        "pool": pack(raw),
        **more,
    }


def full(dtype: Any, block_size: int = 32, mode: str = "NONE", **more: Any) -> Any:
    """Attention layers' specification."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    return kv.FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=HEADS,
        head_size=SIZE,
        dtype=dtype,
        kv_quant_mode=kv.KVQuantMode[mode],
        **more,
    )


def unmade(kind: Any, **fields: Any) -> Any:
    """A backend's implementation with just the fields that writing needs: no layer, no engine."""
    found = kind.__new__(kind)
    for name, value in fields.items():
        setattr(found, name, value)
    return found


def write_cpu(case: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
    """By the CPU's attention backend."""
    cpu: Any = importlib.import_module("vllm.v1.attention.backends.cpu_attn")
    block_size = case.kernel_block_size or case.spec.block_size
    isa = cpu._get_attn_isa(key.dtype, block_size, SIZE, case.cache_dtype)
    if isa not in ("vec", "vec16"):
        raise SystemExit(f"this machine writes {isa} pages, whose interior is not described")
    layer = types.SimpleNamespace(
        isa=isa, _k_scale_float=case.scales[0], _v_scale_float=case.scales[1]
    )
    impl = unmade(
        cpu.CPUAttentionBackendImpl,
        attn_type=cpu.AttentionType.DECODER,
        kv_cache_dtype=case.cache_dtype,
    )
    impl.do_kv_cache_update(layer, key, value, view, slots)


def write_cpu_latents(case: Case, view: Any, latent: Any, rope: Any, slots: Any) -> None:
    """By the CPU's MLA backend, whose caches have no head axis."""
    mla: Any = importlib.import_module("vllm.v1.attention.backends.mla.cpu_mla")
    impl = unmade(mla.CPUMLAImpl)
    scale = torch.ones(1)
    impl.do_kv_cache_update(
        latent, rope.unsqueeze(1), view.squeeze(1), slots, case.cache_dtype, scale
    )


def record_cpu() -> list[dict[str, Any]]:
    """What the CPU's backends write."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    bf16, cpu = torch.bfloat16, {"name": "cpu"}
    fp8 = full(torch.uint8, mode="FP8_PER_TENSOR")
    latents = kv.MLAAttentionSpec(block_size=16, num_kv_heads=1, head_size=48, dtype=bf16)
    e4m3, e5m2 = (cpu | {"float8": float8} for float8 in ("e4m3", "e5m2"))
    cases = [
        (Case("cpu-bf16", full(bf16), "LBHNC", cpu), bf16),
        (Case("cpu-f16", full(torch.float16), "LBHNC", cpu), torch.float16),
        (Case("cpu-f32", full(torch.float32), "LBHNC", cpu), torch.float32),
        (Case("cpu-bf16-16-tokens", full(bf16, 16), "LBHNC", cpu), bf16),
        (Case("cpu-kernel-blocks", full(bf16, 64), "LBHNC", cpu, kernel_block_size=32), bf16),
        (Case("cpu-e4m3", fp8, "LBHNC", e4m3, "fp8_e4m3", 15, (0.5, 0.25)), bf16),
        (Case("cpu-e5m2", fp8, "LBHNC", e5m2, "fp8_e5m2", 7, (4.0, 2.0)), bf16),
    ]
    found = [record(case, write_cpu, dtype) for case, dtype in cases]
    case = Case("cpu-latents", latents, "LBHNC", {"kv_lora_rank": 32})
    return [*found, record(case, write_cpu_latents, bf16)]


def interpret() -> None:
    """Makes vLLM keep its Triton kernels on a machine without a GPU.

    It looks for a backend that can compile; the interpreter needs none. The kernels' callers then
    ask the platform what it can do, and are told of one that knows 8-bit floats.
    """
    backends: Any = importlib.import_module("triton.backends").backends
    backends["cpu"] = types.SimpleNamespace(driver=None)
    writers: Any = importlib.import_module("vllm.v1.attention.ops.triton_reshape_and_cache_flash")
    writers.current_platform = types.SimpleNamespace(
        is_rocm=lambda: True,
        is_xpu=lambda: False,
        has_device_capability=lambda _: True,
        fp8_dtype=lambda: torch.float8_e4m3fn,
    )


def write_triton(case: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
    """By Triton's attention backend."""
    backend: Any = importlib.import_module("vllm.v1.attention.backends.triton_attn")
    impl = unmade(
        backend.TritonAttentionImpl,
        attn_type=backend.AttentionType.DECODER,
        head_size=SIZE,
        kv_cache_dtype=case.cache_dtype,
        fp8_dtype=torch.float8_e4m3fn,
        _kv_quant_mode=case.spec.kv_quant_mode,
        _is_per_token_head_quant=case.spec.kv_quant_mode.is_per_token_head,
        _k_scale_cache=None,
        _v_scale_cache=None,
    )
    k_scale, v_scale = (torch.tensor([scale]) for scale in case.scales)
    layer = types.SimpleNamespace(_k_scale=k_scale, _v_scale=v_scale)
    impl.do_kv_cache_update(layer, key, value, view, slots)


def write_rocm(case: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
    """By ROCm's attention backend, where it takes its Triton kernel."""
    backend: Any = importlib.import_module("vllm.v1.attention.backends.rocm_attn")
    impl = unmade(
        backend.RocmAttentionImpl,
        attn_type=backend.AttentionType.DECODER,
        num_kv_heads=HEADS,
        head_size=SIZE,
        kv_cache_dtype=case.cache_dtype,
    )
    k_scale, v_scale = (torch.tensor([scale]) for scale in case.scales)
    layer = types.SimpleNamespace(_k_scale=k_scale, _v_scale=v_scale)
    impl.do_kv_cache_update(layer, key, value, view, slots)


def record_triton() -> list[dict[str, Any]]:
    """What the Triton kernels write."""
    interpret()
    triton: Any = importlib.import_module("vllm.v1.attention.backends.triton_attn")
    rocm: Any = importlib.import_module("vllm.v1.attention.backends.rocm_attn")
    bf16, packed = torch.bfloat16, {"name": "packed"}
    pack_cells = triton.TritonAttentionBackend.customize_spec
    planes = rocm.RocmAttentionBackend.customize_spec
    fp8 = full(torch.uint8, mode="FP8_PER_TENSOR")
    int8_scaled = pack_cells(full(torch.int8, mode="INT8_PER_TOKEN_HEAD"))
    fp8_scaled = pack_cells(full(torch.uint8, mode="FP8_PER_TOKEN_HEAD"))
    cases = [
        Case(f"triton-bf16-{layout}", full(bf16), layout, packed)
        for layout in ("LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC")
    ]
    cases += [
        Case("triton-fp8", fp8, "LBNHC", packed, "fp8_e4m3", 15, (0.5, 0.25)),
        Case("triton-int8-scaled", int8_scaled, "LBHNC", packed, "int8_per_token_head"),
        Case("triton-int8-scaled-BLNHC", int8_scaled, "BLNHC", packed, "int8_per_token_head"),
        # 448, the largest e4m3, is 7: the scale is 1/64 and all others are whole numbers of it.
        Case("triton-fp8-scaled", fp8_scaled, "LBHNC", packed, "fp8_per_token_head", 15, peak=7.0),
    ]
    found = [record(case, write_triton, bf16) for case in cases]
    split = {"name": "rocm_planes"}
    cases = [
        Case("rocm-bf16", planes(full(bf16)), "LBHNC", split),
        Case("rocm-bf16-LHBNC", planes(full(bf16, 8)), "LHBNC", split),
        Case("rocm-fp8", planes(fp8), "LBHNC", split, "fp8_e4m3", 15, (0.5, 0.25)),
    ]
    return found + [record(case, write_rocm, bf16) for case in cases]


def main(writers: str) -> None:
    """Writes the cases as JSON, one a line."""
    torch.manual_seed(1)
    cases = {"cpu": record_cpu, "triton": record_triton}[writers]()
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    sys.stdout.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main(sys.argv[1])
