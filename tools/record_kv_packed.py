r"""Records pages of packed caches that vLLM's own Triton kernels wrote.

The form is that of `record_kv_pages.py`.

Runs with the engine's Python, in Triton's interpreter::

    export PYTHONPATH=connector:tools TRITON_INTERPRET=1
    python tools/record_kv_packed.py > $VECTORS/pages-packed.json

Where a format changes values, those given are such that it keeps them: powers of two under its
scales, and signs that a normalisation leaves alone. Where it has tables, a case has them, too:
`signs` of a rotation, `centroids` of a codebook.

**Not recorded, and why**

* NVFP4, of FlashInfer as of MiniMax-M3, and B12X: their writers are CUDA operators, which the CPU
  wheel lacks.
* `nvfp4_ds_mla` (352 bytes), V4's mxfp4 keys (68), V4.1's rows of 288: their kernels round in
  assembly, NVIDIA's or AMD's.
* Keys of Qwen4's ring and of MiniMax-M3's indexer: plain rows, stored by a model's forward pass.
* Recurrent states: as in `record_kv_pages.py`.
"""

import hashlib
import importlib
import json
import sys
import types
from typing import Any

from record_kv_pages import HEADS, NUM_TOKENS, Case, interpret, record_given, write_triton

torch: Any = importlib.import_module("torch")

SIZE = 64
"""Elements of a head: the root of a power of four is exact."""

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def packed(mode: str, backend: str, block_size: int = 16) -> Any:
    """A specification as its backend packs it."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    module, name = backend.split(":")
    kind = getattr(importlib.import_module(f"vllm.v1.attention.backends.{module}"), name)
    spec = kv.FullAttentionSpec(
        block_size=block_size,
        num_kv_heads=HEADS,
        head_size=SIZE,
        dtype=torch.uint8,
        kv_quant_mode=kv.KVQuantMode[mode],
    )
    return kind.customize_spec(spec)


def digest(table: Any) -> str:
    """Of a table's bytes."""
    return "sha256:" + hashlib.sha256(table.numpy().tobytes()).hexdigest()


def any_rows(dtype: Any) -> Any:
    """Rows that no format keeps exactly."""
    return torch.randn(NUM_TOKENS, HEADS, SIZE).to(dtype)


def levels(*shape: int) -> Any:
    """E2M1 values with the largest in each 32."""
    found = torch.tensor(E2M1)[torch.randint(0, 8, shape)]
    found[..., ::32] = 6.0
    return found * (1 - 2 * torch.randint(0, 2, shape))


def record_int4() -> list[dict[str, Any]]:
    """Rotated, with zero points."""
    ops: Any = importlib.import_module("vllm.v1.attention.ops.int4_per_token_head")
    spec = packed("INT4_PER_TOKEN_HEAD", "triton_attn:TritonAttentionBackend")
    signs = ops._get_rht_signs(SIZE, 0, torch.device("cpu")).to(torch.int8)
    interior = {"name": "packed", "rotation": digest(signs)}
    found = []
    for layout in ("LBHNC", "LBNHC"):
        case = Case(f"int4-{layout}", spec, layout, interior, "int4_per_token_head")
        written = {side: any_rows(torch.bfloat16) for side in "kv"}
        found.append(record_given(case, write_triton, written, signs=signs.tolist()))
    return found


def record_ultraquant() -> list[dict[str, Any]]:
    """Keys that are E2M1 levels once they are rotated, and values that are as they are."""
    ops: Any = importlib.import_module("vllm.v1.attention.ops.ultraquant.triton_store")
    spec = packed("ULTRAQUANT_4BIT", "ultraquant_attn:UltraQuantAttentionBackend")
    rotation = ops._get_hadamard(SIZE, torch.device("cpu"))
    shape = (NUM_TOKENS, HEADS, SIZE)
    written = {"k": (levels(*shape) @ rotation).half(), "v": (levels(*shape) * 0.25).half()}

    def write(_: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
        ops.ultraquant_store(key, value, view.transpose(1, 2), slots)

    case = Case("ultraquant", spec, "LBNHC", {"name": "packed"})
    return [record_given(case, write, written)]


def record_turboquant() -> list[dict[str, Any]]:
    """All four presets, and two of them in regions."""
    config: Any = importlib.import_module("vllm.model_executor.layers.quantization.turboquant")
    tables: Any = importlib.import_module(f"{config.__name__}.centroids")
    kinds: Any = importlib.import_module(f"{config.__name__}.config").TurboQuantConfig
    found = []
    for preset, name in [
        *((preset, "packed") for preset in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")),
        *((preset, "turboquant_regions") for preset in ("k8v4", "3bit_nc")),
    ]:
        mode = f"turboquant_{preset}"
        spec = packed(mode.upper(), "turboquant_attn:TurboQuantAttentionBackend")
        each = kinds.from_cache_dtype(mode, SIZE)
        centroids = tables.get_centroids(SIZE, each.centroid_bits).float().sort().values
        interior = {"name": name, "tables": "e4m3" if each.key_fp8 else digest(centroids)}
        case = Case(f"turboquant-{preset}-{name}", spec, "LBNHC", interior)
        written = {side: any_rows(torch.bfloat16) for side in "kv"}
        if each.key_fp8:
            written["k"] = (torch.randint(-15, 16, written["k"].shape) / 16).bfloat16()
        write = turboquant_writer(each, centroids, name)
        found.append(record_given(case, write, written, centroids=centroids.tolist()))
    return found


def turboquant_writer(config: Any, centroids: Any, name: str) -> Any:
    """The store of cells, or that of regions."""
    ops: Any = importlib.import_module("vllm.v1.attention.ops.triton_turboquant_store")
    rotation = importlib.import_module("vllm.v1.attention.backends.turboquant_attn")
    more: dict[str, Any] = {}
    if name == "turboquant_regions":
        ops = importlib.import_module(
            "vllm.v1.attention.ops.turboquant_soa.triton_turboquant_store"
        )
        more = {"centroids": centroids, "norm_correction": config.norm_correction}

    def write(_: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
        ops.triton_turboquant_store(
            key,
            value,
            view.transpose(1, 2),
            slots,
            rotation._build_hadamard(SIZE, "cpu"),
            (centroids[:-1] + centroids[1:]) / 2,
            mse_bits=config.key_mse_bits,
            key_packed_size=config.key_packed_size,
            value_quant_bits=config.effective_value_quant_bits,
            key_fp8=config.key_fp8,
            **more,
        )

    return write


def mla_spec(head_size: int, content: int | None, cache_dtype: str | None, **more: Any) -> Any:
    """A cache of one row for each token."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    fields: dict[str, Any] = {
        "block_size": 16,
        "num_kv_heads": 1,
        "head_size": head_size,
        "dtype": torch.uint8,
        "cache_dtype_str": cache_dtype,
        "state_content_bytes": content,
    }
    if cache_dtype is not None:
        fields["kv_quant_mode"] = kv.get_kv_quant_mode(cache_dtype)
    kind = kv.SlidingWindowMLASpec if "sliding_window" in more else kv.MLAAttentionSpec
    return kind(**(fields | more))


def record_v4() -> list[dict[str, Any]]:
    """Rows of 448 e4m3 and 64 bf16, before all scales."""
    ops: Any = importlib.import_module("vllm.models.deepseek_v4.common.ops.cache_utils")
    spec = mla_spec(
        512, 584, "fp8_ds_mla", sliding_window=128, alignment=576, model_version="deepseek_v4"
    )
    written = {
        "latent": (torch.randint(-15, 16, (NUM_TOKENS, 448)) / 16).bfloat16(),
        "rope": torch.randn(NUM_TOKENS, 64).bfloat16(),
    }

    def write(case: Case, view: Any, latent: Any, rope: Any, slots: Any) -> None:
        pages = torch.as_strided(
            view, (view.shape[0], case.spec.page_size_bytes), (view.stride(0), 1)
        )
        rows = torch.cat([latent, rope], dim=1).contiguous()
        ops.quantize_and_insert_k_cache(rows, pages, slots, case.spec.block_size)

    return [record_given(Case("v4-584", spec, "BLHNC", {}), write, written)]


def record_v41() -> list[dict[str, Any]]:
    """V4.1's own rows of 512 e4m3, before all scales, and the plain rows of either."""
    ops: Any = importlib.import_module("vllm.models.deepseek_v41.common.ops")
    store: Any = importlib.import_module(f"{ops.__name__}.fused_compress_quant_cache")
    fields = {"sliding_window": 128, "alignment": 512, "model_version": "deepseek_v4"}
    angles = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], dim=1)
    whole = (torch.randint(-15, 16, (NUM_TOKENS, 512)) / 16).bfloat16()

    def write(_: Case, view: Any, *rest: Any) -> None:
        *parts, slots = rest
        rows = torch.cat(parts, dim=1).contiguous()
        start = torch.zeros(NUM_TOKENS, dtype=torch.int64)
        store.rope_quant_insert(rows, start, angles, view.squeeze(1), slots, 1)

    packed_rows = mla_spec(512, 528, "fp8_ds_mla", **fields)
    plain_rows = mla_spec(512, None, "auto", dtype=torch.bfloat16, **fields)
    parts = {"latent": whole[:, :448], "rope": whole[:, 448:]}
    return [
        record_given(Case("v41-528", packed_rows, "BLHNC", {}), write, {"latent": whole}),
        record_given(Case("v4-bf16", plain_rows, "BLHNC", {}), write, parts),
    ]


def record_aiter() -> list[dict[str, Any]]:
    """Tiles, whose kernel is there on ROCm alone: of that the backend is told as it is loaded."""
    rocm: Any = importlib.import_module("vllm.v1.attention.backends.rocm_attn")
    backend: Any = importlib.import_module("vllm.v1.attention.backends.rocm_aiter_fa")
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    platform = type(importlib.import_module("vllm.platforms").current_platform)
    is_rocm = platform.is_rocm
    platform.is_rocm = lambda _: True
    importlib.reload(backend)
    platform.is_rocm = is_rocm

    def write(case: Case, view: Any, key: Any, value: Any, slots: Any) -> None:
        if case.cache_dtype != "auto":
            view = view.view(torch.float8_e4m3fn)
        sides = view.unflatten(-1, (HEADS, SIZE)).unbind(1)
        one = torch.ones(1)
        backend.reshape_and_cache_shuffle_triton(
            key, value, *sides, slots, case.cache_dtype, one, one
        )

    found = []
    for name, dtype, mode in (
        ("auto", torch.bfloat16, "NONE"),
        ("fp8", torch.uint8, "FP8_PER_TENSOR"),
    ):
        spec = kv.FullAttentionSpec(
            block_size=16,
            num_kv_heads=HEADS,
            head_size=SIZE,
            dtype=dtype,
            kv_quant_mode=kv.KVQuantMode[mode],
        )
        spec = rocm.RocmAttentionBackend.customize_spec(spec)
        whole = (torch.randint(-15, 16, (2, NUM_TOKENS, HEADS, SIZE)) / 16).bfloat16()
        case = Case(f"aiter-{name}", spec, "LBHNC", {"name": "aiter_tiles"}, name)
        found.append(record_given(case, write, dict(zip("kv", whole, strict=True))))
    return found


def record_v3() -> list[dict[str, Any]]:
    """Rows of 656 bytes, and keys of an indexer: signs that normalisation keeps, times weights."""
    kv: Any = importlib.import_module("vllm.v1.kv_cache_interface")
    latent = mla_spec(576, 656, "fp8_ds_mla")
    index = mla_spec(132, None, None, cache_role=kv.SparseCacheRole.INDEXER)
    weights = {512: torch.randint(1, 16, (512,)) / 16, 128: torch.randint(1, 16, (128,)) / 16}
    halves = torch.ones(NUM_TOKENS, 128)
    halves[:, ::2] = -1
    keys = torch.stack([row[torch.randperm(128)] for row in halves])
    rows = 1.0 - 2 * torch.randint(0, 2, (NUM_TOKENS, 512))
    rope = torch.randn(NUM_TOKENS, 64).bfloat16()

    def write_rows(_: Case, view: Any, latents: Any, ropes: Any, slots: Any) -> None:
        store_v3(latents / weights[512], ropes, keys, weights, slots, mla_kv_cache=view.squeeze(1))

    def write_keys(_: Case, view: Any, found: Any, slots: Any) -> None:
        signs = found / weights[128]
        store_v3(rows, rope, signs, weights, slots, indexer_k_cache=view.squeeze(1))

    given = {"latent": rows * weights[512], "rope": rope}
    return [
        record_given(Case("v3-656", latent, "LBHNC", {}), write_rows, given),
        record_given(
            Case("v3-132", index, "LBHNC", {}), write_keys, {"index_k": keys * weights[128]}
        ),
    ]


def store_v3(
    rows: Any, rope: Any, keys: Any, weights: dict[int, Any], slots: Any, **caches: Any
) -> None:
    """The kernel of V3.2 that normalises, turns by no angle, and stores."""
    ops: Any = importlib.import_module("vllm.models.deepseek_v32.common.kernels")
    angles = torch.cat([torch.ones(1, 32), torch.zeros(1, 32)], dim=1)
    ops.fused_norm_rope(
        torch.zeros(NUM_TOKENS, dtype=torch.int64),
        torch.ones(NUM_TOKENS, 64),
        torch.ones(64),
        0.0,
        rows.contiguous(),
        weights[512],
        0.0,
        rope.contiguous(),
        angles,
        keys.contiguous(),
        weights[128],
        torch.zeros(128),
        0.0,
        angles,
        torch.zeros(NUM_TOKENS, 16, dtype=torch.int32),
        slot_mapping=slots,
        mla_kv_cache_dtype="fp8_ds_mla" if "mla_kv_cache" in caches else "auto",
        **caches,
    )


def record_compressor() -> list[dict[str, Any]]:
    """Rows that are yet to be compressed four to one, and their scores."""
    ops: Any = importlib.import_module("vllm.models.deepseek_v4.common.ops.save_partial_states")
    spec = mla_spec(256, None, None, dtype=torch.float32, sliding_window=8, alignment=576)
    written = {role: torch.randn(NUM_TOKENS, 128) for role in ("state_kv", "state_score")}

    def write(case: Case, view: Any, rows: Any, scores: Any, slots: Any) -> None:
        state = view.squeeze(1)
        ops.SavePartialStatesKernel.kernel[(NUM_TOKENS,)](
            rows,
            rows.stride(0),
            scores,
            scores.stride(0),
            torch.zeros(4, 128),
            128,
            torch.arange(NUM_TOKENS),
            state,
            state.stride(0),
            state.stride(1),
            slots,
            case.spec.block_size,
            HEAD_SIZE=128,
            TRITON_BLOCK_SIZE=128,
            STATE_WIDTH=128,
            COMPRESS_RATIO=4,
        )

    return [record_given(Case("compressor", spec, "BLHNC", {"name": "compressor"}), write, written)]


def main() -> None:
    """Writes the cases as JSON, one a line."""
    interpret()
    torch.manual_seed(1)
    kernels: Any = importlib.import_module("vllm.models.deepseek_v32.common.kernels")
    kernels.current_platform = types.SimpleNamespace(is_arch_support_pdl=lambda: False)
    cases = [
        *record_int4(),
        *record_ultraquant(),
        *record_turboquant(),
        *record_v4(),
        *record_v3(),
        *record_compressor(),
        *record_v41(),
        *record_aiter(),
    ]
    lines = ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases)
    sys.stdout.write(f"[\n{lines}\n]\n")


if __name__ == "__main__":
    main()
