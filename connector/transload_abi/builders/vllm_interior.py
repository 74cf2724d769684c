"""What a page of vLLM's holds and no specification tells: whoever builds a descriptor names it.

**Theory.** vLLM's specification ends at the cell (`vllm_layout`): what its bytes are is the
attention backend's own affair, and even that a cell is one piece is not certain. Hence the
*interior*, by name (files of vLLM 0.32.0):

====================  ==============================================================================
`packed`              `[K V]` in each cell, with the scales and codes of its quantisation:
                      FlashAttention, Triton, FlashInfer, TurboQuant, UltraQuant, all MLA backends
`cpu`                 for each head K transposed `[D, N]`, then V `[N, D]` (`cpu_attn.py`, isa `vec`
                      and `vec16`), in kernel blocks
`rocm_planes`         two slots: a K plane `[H, D/x, N, x]` with x = 16 bytes, a V plane
                      `[H, D, N]` (`rocm_attn.py`, `paged_attn.py:split_kv_cache`)
`aiter_tiles`         two slots: K as above, V `[H, N/x, D, x]` (`rocm_aiter_fa.py`, with shuffle)
`planes`              two slots: K and V, `[N, H, D]` each (`b12x.py`)
`nvfp4_linear`        all of K, its scales, all of V, its scales (`flashinfer.py`, SM120)
`nvfp4_trtllm_gen`    the same with V's scales in tiles of four tokens, the tokens innermost (SM100)
`nvfp4_msa`           a slot for each head's K and for its V: elements, then scales
                      (`minimax_m3/nvidia/msa_cutlass_sparse_decode.py`)
`turboquant_regions`  codes of all tokens, then norms, scales and zeros by head (`turboquant_soa`,
                      gfx950)
`indexer`             keys that choose tokens; quantised ones before their scales, unshuffled
                      (`deepseek_v2.py`, `deepseek_v4/attention.py`, `minimax_m3/common/indexer.py`,
                      `qwen4_exp/common/qsa_cache.py:QSACompressedKeyCache`)
`compressor`          rows that are yet to be compressed, then their scores
                      (`deepseek_v4/compressor.py`, `deepseek_v41/compressor.py`)
`index_compressor`    the same of the compressor of index keys (`deepseek_v4/attention.py`,
                      `glm5next/common/attention.py`)
`key_ring`            keys that are yet to be compressed, and positions where told
                      (`qwen4_exp/common/qsa_cache.py:QSAKeyStateCache`)
`page`                nobody says: bytes. Needs `opaque`
====================  ==============================================================================

Nothing tells a wrong interior from a right one but the bytes: compare a page that the engine wrote,
and where nobody has, say so in `opaque`.
"""

from typing import Final, Literal, NamedTuple

import msgspec

Name = Literal[
    "packed",
    "cpu",
    "rocm_planes",
    "aiter_tiles",
    "planes",
    "nvfp4_linear",
    "nvfp4_trtllm_gen",
    "nvfp4_msa",
    "turboquant_regions",
    "indexer",
    "compressor",
    "index_compressor",
    "key_ring",
    "page",
]


class StatePart(NamedTuple):
    """Heads of a recurrent layer's state.

    Attributes:
        role: `ssm_h`, or one of `conv_q` to `conv_c`.
        heads: That the rank holds.
        channels: Of the convolution, for each head; 0 for `ssm_h`.
        total_heads: Of the model; 0: as many as the rank has, times the ranks.
    """

    role: str
    heads: int
    channels: int = 0
    total_heads: int = 0


class Interior(msgspec.Struct, frozen=True):
    """What the specification does not tell.

    Attributes:
        name: Of the page's interior, see above. Flattened states of recurrent layers have only one.
        kernel_block_size: Tokens of the backend's own blocks, into which a block is cut; 0: as many
            as a block has.
        float8: What an 8-bit float cache holds; the specification says `uint8`.
        kv_lora_rank: Elements of an MLA latent; the rest of `head_size` is the rotary part, which
            there need not be. 0: all but 64, as DeepSeek's models to V4 have it.
        rotation: What was done to keys and values before they were rounded to four bits. Due for
            `INT4_PER_TOKEN_HEAD`: `sha256:` and the digest of the signs that each row was
            multiplied by before its Hadamard transform, one signed byte each
            (`int4_per_token_head.py:_get_rht_signs`, as many as the largest power of two that
            divides `head_size`).
        tables: Of TurboQuant: `sha256:` and the digest of its rotation and centroids, or another
            text that means them alone.
        position_elements: Of a `key_ring`'s rows: elements before the row's three positions, which
            begin at the next multiple of four; 0: there are no positions.
        state_parts: Heads of a recurrent layer; a convolution's in the order of its channels. None:
            states are flattened.
        conv_order: How a convolution's state is stored: `SD` columns outermost, `DS` channels
            (`mamba_utils.py:get_conv_state_layout`).
        opaque: Not empty where nobody has shown that the interior is true: who writes such pages,
            with whatever their bytes depend on. They move only as they are.
    """

    name: Name = "packed"
    kernel_block_size: int = 0
    float8: Literal["e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"] = "e4m3"
    kv_lora_rank: int = 0
    rotation: str = ""
    tables: str = ""
    position_elements: int = 0
    state_parts: tuple[StatePart, ...] = ()
    conv_order: Literal["SD", "DS"] = "SD"
    opaque: str = ""


PACKED: Final = Interior()
