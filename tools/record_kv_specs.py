r"""Records where vLLM's own functions place the pages of its caches, for builders to be held to.

Runs with the engine's Python, without a model and without a device; some backends can be imported
only where Triton's kernels run, so in its interpreter::

    TRITON_INTERPRET=1 PYTHONPATH=connector:tools python tools/record_kv_specs.py \
        > tests/protocol/vectors/abi/vllm-0.32.0/specs.json

The answer is one object:

* `single`: a specification, so many layers and blocks of it, its page's bytes, and for each layout
  the byte strides of `[L, B, H, N, C]`, or `null` where vLLM refuses the layout;
* `configs`: what vLLM's own grouping makes of a model's layers in a layout, and the views that its
  workers get: `[offset, shape, strides]` by layer, in bytes, of `[B, H, N, C]`.
"""

import importlib
import json
import sys
import types
from fractions import Fraction
from typing import Any

from record_kv_pages import interpret
from transload_abi.builders.vllm_read import plain

interpret()

torch: Any = importlib.import_module("torch")
kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
layouts: Any = importlib.import_module("vllm.v1.kv_cache_layout")
cache_utils: Any = importlib.import_module("vllm.v1.core.kv_cache_utils")
config: Any = importlib.import_module("vllm.config")
triton_attn: Any = importlib.import_module("vllm.v1.attention.backends.triton_attn")
rocm_attn: Any = importlib.import_module("vllm.v1.attention.backends.rocm_attn")
b12x: Any = importlib.import_module("vllm.v1.attention.backends.b12x")
turboquant: Any = importlib.import_module("vllm.v1.attention.backends.turboquant_attn")
ultraquant: Any = importlib.import_module("vllm.v1.attention.backends.ultraquant_attn")
torch_utils: Any = importlib.import_module("vllm.utils.torch_utils")
mamba_utils: Any = importlib.import_module("vllm.model_executor.layers.mamba.mamba_utils")

_BF16 = {"num_kv_heads": 8, "head_size": 128, "dtype": torch.bfloat16}
_MLA = {"num_kv_heads": 1, "head_size": 576, "max_tp_shards": 1}
_MODE = kv.KVQuantMode
NUM_LAYERS, NUM_BLOCKS = 3, 7


def scaled(mode: Any, dtype: Any) -> Any:
    """A cache with a scale in each cell, as Triton's backend packs it."""
    spec = kv.FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype=dtype, kv_quant_mode=mode
    )
    return triton_attn.TritonAttentionBackend.customize_spec(spec)


def packed(mode: Any, backend: Any) -> Any:
    """A cache of bytes, as its backend packs it."""
    spec = kv.FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype=torch.uint8, kv_quant_mode=mode
    )
    return backend.customize_spec(spec)


def planes(dtype: Any, mode: Any) -> Any:
    """A cache of K and V planes, as ROCm's backend packs it."""
    spec = kv.FullAttentionSpec(
        block_size=16, num_kv_heads=8, head_size=128, dtype=dtype, kv_quant_mode=mode
    )
    return rocm_attn.RocmAttentionBackend.customize_spec(spec)


def mla(cache_dtype: str, dtype: Any, content: int | None = None, **more: Any) -> Any:
    """A cache of latents."""
    return kv.MLAAttentionSpec(
        block_size=64,
        dtype=dtype,
        cache_dtype_str=cache_dtype,
        kv_quant_mode=kv.get_kv_quant_mode(cache_dtype),
        state_content_bytes=content,
        **(_MLA | more),
    )


def mamba(**more: Any) -> Any:
    """A cache of two states."""
    return kv.MambaSpec(
        block_size=64,
        shapes=((3, 48), (4, 8, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        **more,
    )


def packed_specs() -> dict[str, Any]:
    """By name: caches whose pages are more than cells of K and V."""
    v4 = {"head_size": 512, "model_version": "deepseek_v4"}
    bytes_of = {"dtype": torch.uint8}
    fp8, nvfp4 = (
        bytes_of | {"cache_dtype_str": name, "kv_quant_mode": kv.get_kv_quant_mode(name)}
        for name in ("fp8_ds_mla", "nvfp4_ds_mla")
    )
    one = {"num_kv_heads": 1, "max_tp_shards": 1}
    f32, bf16 = {"dtype": torch.float32}, {"dtype": torch.bfloat16}
    ring = {"block_size": 8, "num_kv_heads": 1, "head_size_v": 0}
    indexer = {"cache_role": kv.SparseCacheRole.INDEXER}

    def row(block_size: int, **fields: Any) -> Any:
        return kv.MLAAttentionSpec(block_size=block_size, **(one | fields))

    def window(block_size: int, **fields: Any) -> Any:
        return kv.SlidingWindowMLASpec(block_size=block_size, **(one | fields))

    presets = ("K8V4", "4BIT_NC", "K3V4_NC", "3BIT_NC")
    return {
        **{
            f"turboquant-{preset}": packed(
                _MODE[f"TURBOQUANT_{preset}"], turboquant.TurboQuantAttentionBackend
            )
            for preset in presets
        },
        "int4": packed(_MODE.INT4_PER_TOKEN_HEAD, triton_attn.TritonAttentionBackend),
        "ultraquant": packed(_MODE.ULTRAQUANT_4BIT, ultraquant.UltraQuantAttentionBackend),
        # As FlashInfer's and MiniMax-M3's backends pack it, which cannot be imported here.
        "nvfp4": kv.FullAttentionSpec(
            block_size=16,
            num_head_slots=16,
            state_content_bytes=torch_utils.nvfp4_kv_cache_full_dim(128),
            **(_BF16 | bytes_of | {"kv_quant_mode": _MODE.NVFP4}),
        ),
        "b12x": b12x.B12xPagedAttentionBackend.customize_spec(
            kv.FullAttentionSpec(block_size=16, **_BF16)
        ),
        "mla-352": row(64, head_size=576, state_content_bytes=352, **nvfp4),
        "v4-c4": row(256, tokens_per_state=4, alignment=576, state_content_bytes=584, **v4, **fp8),
        "v4-c128": row(
            256, tokens_per_state=128, alignment=576, state_content_bytes=584, **v4, **fp8
        ),
        "v4-window": window(
            64, sliding_window=128, alignment=576, state_content_bytes=584, **v4, **fp8
        ),
        "v4-c4-bf16": row(256, tokens_per_state=4, alignment=512, **v4, **bf16),
        "v41-528": row(
            128, tokens_per_state=4, alignment=512, state_content_bytes=528, **v4, **fp8
        ),
        "v41-288": row(
            128, tokens_per_state=4, alignment=512, state_content_bytes=288, **v4, **nvfp4
        ),
        "indexer-132": row(64, head_size=132, **bytes_of, **indexer),
        "v4-indexer-132": row(256, head_size=132, tokens_per_state=4, alignment=576, **bytes_of),
        "v4-indexer-68": row(256, head_size=68, tokens_per_state=4, alignment=576, **bytes_of),
        "v4-compressor-c4": window(4, head_size=2048, sliding_window=8, alignment=576, **f32),
        "v4-compressor-c128": window(8, head_size=1024, sliding_window=128, alignment=576, **f32),
        "v41-compressor": kv.CircularBufferSpec(head_size=1024, **ring, **f32),
        "m3-indexer": row(128, head_size=128, **bf16, **indexer),
        "qsa-ring": kv.CircularBufferSpec(head_size=140, **ring, **bf16),
        "qsa-keys": row(128, head_size=128, tokens_per_state=4, **bf16),
        "glm-tail": kv.CircularBufferSpec(
            head_size=128, dcp_sharded=False, **(ring | {"num_kv_heads": 2}), **bf16
        ),
        "sinks": kv.SinkFullAttentionSpec(block_size=16, sink_len=32, **_BF16),
        "rswa": kv.RSWASpec(block_size=16, rswa_window=64, **_BF16),
        "gdn": kv.MambaSpec(
            block_size=16,
            shapes=mamba_utils.MambaStateShapeCalculator.gated_delta_net_state_shape(
                2, 16, 32, 128, 128, 4
            ),
            dtypes=(torch.bfloat16, torch.float32),
        ),
        "mamba2": kv.MambaSpec(
            block_size=16,
            shapes=mamba_utils.MambaStateShapeCalculator.mamba2_state_shape(
                2, 4096, 8, 64, 64, 128, 4
            ),
            dtypes=(torch.bfloat16, torch.float32),
        ),
    }


def specs() -> dict[str, Any]:
    """By name."""
    fp8 = {"dtype": torch.uint8, "kv_quant_mode": _MODE.FP8_PER_TENSOR}
    return {
        "full": kv.FullAttentionSpec(block_size=16, **_BF16),
        "full-one-head": kv.FullAttentionSpec(block_size=16, **(_BF16 | {"num_kv_heads": 1})),
        "full-windowed": kv.FullAttentionSpec(block_size=16, sliding_window=64, **_BF16),
        "full-f32": kv.FullAttentionSpec(block_size=32, **(_BF16 | {"dtype": torch.float32})),
        "full-unequal": kv.FullAttentionSpec(
            block_size=16, **(_BF16 | {"head_size": 192, "head_size_v": 128})
        ),
        "full-fp8": kv.FullAttentionSpec(block_size=16, **(_BF16 | fp8)),
        "full-padded": kv.FullAttentionSpec(block_size=16, page_size_padded=65792, **_BF16),
        "full-half-states": kv.FullAttentionSpec(
            block_size=16, tokens_per_state=Fraction(1, 2), **_BF16
        ),
        "full-four-tokens": kv.FullAttentionSpec(block_size=16, tokens_per_state=4, **_BF16),
        "window": kv.SlidingWindowSpec(block_size=16, sliding_window=128, **_BF16),
        "chunked": kv.ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=256, **_BF16),
        "cross": kv.CrossAttentionSpec(block_size=16, **_BF16),
        "int8-scaled": scaled(_MODE.INT8_PER_TOKEN_HEAD, torch.int8),
        "fp8-scaled": scaled(_MODE.FP8_PER_TOKEN_HEAD, torch.uint8),
        "planes": planes(torch.bfloat16, _MODE.NONE),
        "planes-fp8": planes(torch.uint8, _MODE.FP8_PER_TENSOR),
        "mla": mla("auto", torch.bfloat16),
        "mla-fp8": mla("fp8", torch.uint8),
        "mla-656": mla("fp8_ds_mla", torch.uint8, 656),
        "mla-aligned": mla("auto", torch.bfloat16, alignment=16384),
        "window-mla": kv.SlidingWindowMLASpec(
            block_size=64, sliding_window=512, dtype=torch.bfloat16, **_MLA
        ),
        "mamba": mamba(),
        "mamba-padded": mamba(page_size_padded=4096),
    }


def single(name: str, spec: Any, kernel_block_size: int | None = None) -> dict[str, Any]:
    """One specification in each layout."""
    strides = {}
    for layout in layouts.KVCacheLayout:
        try:
            strides[layout.name] = kv.compute_layout_strides(
                spec, NUM_BLOCKS, NUM_LAYERS, layout, kernel_block_size
            )
        except AssertionError:
            strides[layout.name] = None
    return {
        "name": name,
        "spec": plain(spec),
        "kernel_block_size": kernel_block_size or 0,
        "num_layers": NUM_LAYERS,
        "num_blocks": NUM_BLOCKS,
        "page_size_bytes": spec.page_size_bytes,
        "strides": strides,
    }


def models() -> dict[str, dict[str, Any]]:
    """The specifications of whole models' layers, by model and layer name."""
    small = {"num_kv_heads": 2, "head_size": 16, "dtype": torch.bfloat16}
    full = kv.FullAttentionSpec(block_size=16, **small)
    window = kv.SlidingWindowSpec(block_size=16, sliding_window=64, **small)
    wide = kv.FullAttentionSpec(block_size=16, **(small | {"head_size": 32}))
    padded = kv.FullAttentionSpec(block_size=16, block_stride_alignment=3072, **small)
    chunked = kv.ChunkedLocalAttentionSpec(block_size=16, attention_chunk_size=32, **small)
    state = kv.MambaSpec(
        block_size=16,
        shapes=((3, 16), (2, 8, 16)),
        dtypes=(torch.bfloat16, torch.float32),
        page_size_padded=full.page_size_bytes,
    )
    return {
        "alike": _layers([full] * 4),
        "windows": _layers([window, full] * 3),
        "windows-odd": _layers([window, window, window, full, window]),
        "chunks": _layers([chunked, full, chunked, full]),
        "two-sizes": _layers([full, wide, full, wide, wide]),
        "states": _layers([state, full, state, full]),
        "aligned": _layers([padded] * 3),
    }


def v4_model() -> dict[str, Any]:
    """Layers of a model that keeps rows of several sorts in each of its blocks."""
    specs = packed_specs()
    names = {
        "v4-c4": "attn",
        "v4-indexer-132": "indexer.k_cache",
        "v4-window": "swa_cache",
        "v4-compressor-c4": "compressor.state_cache",
    }
    return {
        f"model.layers.{number}.{name}": specs[spec]
        for spec, name in names.items()
        for number in range(2)
    }


def _layers(each: list[Any]) -> dict[str, Any]:
    return {f"model.layers.{number}.self_attn.attn": spec for number, spec in enumerate(each)}


def grouped(name: str, layers: dict[str, Any], layout: Any, kernel: int = 0) -> Any:
    """What the engine decides for a model in a layout, and its workers' views; None: it refuses."""
    engine = config.VllmConfig()
    engine.cache_config.kv_cache_layout = layout.name
    engine.cache_config.num_gpu_blocks_override = NUM_BLOCKS
    groups = cache_utils.get_kv_cache_groups(engine, dict(layers))
    try:
        found = cache_utils.get_kv_cache_config_from_groups(engine, groups, 1 << 24)
        views = {}
        for tensor in found.kv_cache_tensors:
            views.update(_views(found, tensor, layout, kernel))
    except (AssertionError, ValueError):
        return None
    found.kv_cache_layout = layout.name
    return {"name": name, "kernel_block_size": kernel, "config": plain(found), "views": views}


def on_the_host(layout: Any) -> Any:
    """What the engine decides where latents lie in host memory and a part of them on the device."""
    hisparse: Any = importlib.import_module("vllm.v1.hisparse.layout")
    hisparse.ResolvedHiSparseConfig = types.SimpleNamespace(
        from_vllm_config=lambda *_: types.SimpleNamespace(device_buffer_size=128)
    )
    specs = packed_specs()
    latent = mla("auto", torch.bfloat16, is_index_group_leader=True)
    layers = {
        f"model.layers.{number}.{name}": spec
        for number in range(2)
        for name, spec in (("attn", latent), ("indexer.k_cache", specs["indexer-132"]))
    }
    engine = config.VllmConfig()
    engine.cache_config.kv_cache_layout = layout.name
    engine.cache_config.num_gpu_blocks_override = NUM_BLOCKS
    engine.model_config = types.SimpleNamespace(
        max_model_len=256, hf_config=types.SimpleNamespace(index_topk=64)
    )
    group = kv.KVCacheGroupSpec(list(layers), kv.UniformTypeKVCacheSpecs.from_specs(layers))
    groups = hisparse._lay_out_hisparse_groups(engine, [group])
    found = hisparse.get_hisparse_kv_cache_config(engine, groups, 1 << 24, 1 << 20)
    found.kv_cache_layout = layout.name
    views = {}
    for tensor in found.kv_cache_tensors:
        if tensor.layers[0] in layers:
            views.update(_views(found, tensor, layout, 0))
    return {"name": "on-the-host", "kernel_block_size": 0, "config": plain(found), "views": views}


def _views(found: Any, tensor: Any, layout: Any, kernel: int) -> dict[str, Any]:
    raw = torch.zeros(tensor.size, dtype=torch.int8)
    group = next(g for g in found.kv_cache_groups if tensor.layers[0] in g.layer_names)
    spec = group.kv_cache_spec
    if isinstance(spec, kv.UniformTypeKVCacheSpecs):
        spec = spec.kv_cache_specs[tensor.layers[0]]
    attention = kernel if isinstance(spec, kv.AttentionSpec) else 0
    num_blocks = found.num_blocks_of(tensor)
    views = kv.create_kv_cache_views(raw, spec, num_blocks, layout, tensor, attention or None)
    answer = {}
    for layer, view in zip(tensor.layers, views, strict=True):
        size = view.element_size()
        strides = [stride * size for stride in view.stride()]
        shape = [*view.shape[:-1], view.shape[-1] * size]
        answer[layer] = [view.data_ptr() - raw.data_ptr(), shape, [*strides[:-1], 1]]
    return answer


def record() -> dict[str, Any]:
    """Everything."""
    singles = [single(name, spec) for name, spec in (specs() | packed_specs()).items()]
    singles += [
        single(f"{name}-kernel", specs()[name], block)
        for name, block in (("full-f32", 16), ("full-one-head", 8), ("planes", 8), ("mla", 16))
    ]
    configs = [
        grouped(name, layers, layout)
        for name, layers in models().items()
        for layout in layouts.KVCacheLayout
    ]
    configs += [grouped("alike", models()["alike"], layout, 8) for layout in layouts.KVCacheLayout]
    by_block = layouts.KVCacheLayout.BLHNC
    configs += [grouped("rows", v4_model(), by_block), on_the_host(by_block)]
    return {"single": singles, "configs": [each for each in configs if each is not None]}


if __name__ == "__main__":
    json.dump(record(), sys.stdout, separators=(",", ":"))
    sys.stdout.write("\n")
