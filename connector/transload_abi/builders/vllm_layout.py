"""Where vLLM's pages and cells are: the strides of its six layouts (`kv_cache_layout.py` @ 0.32.0).

vLLM places pages by five axes: layer `L`, block `B`, head slot `H`, state `N`, and the cell `C` in
bytes. A layout is their order in memory, outermost first. What a cell holds is `vllm_pages`'.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, NamedTuple, get_args

from transload_abi.builders.vllm_spec import MambaSpec, Spec
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS

Layout = Literal["LBHNC", "LBNHC", "LHBNC", "BLHNC", "BLNHC", "BHLNC"]
LAYOUTS: tuple[str, ...] = get_args(Layout)

Term = tuple[str, int, int, int]


class Strides(NamedTuple):
    """Where pages and cells are, in bytes.

    Attributes:
        layer, block: From a page to the next layer's and the next block's.
        slot, state: From a cell to the next head slot's and the next state's.
        kernel_states: States that are `state` apart; beyond them a kernel block begins.
        num_kernel_blocks: Kernel blocks in a block.
        is_whole: Whether a page is one piece of memory, from its first cell to its last.
    """

    layer: int
    block: int
    slot: int
    state: int
    kernel_states: int
    num_kernel_blocks: int
    is_whole: bool

    def states(self, bits: int) -> tuple[Term, ...]:
        """The terms of `N` for cells whose states are so many bits apart."""
        inner = ("N", 1, self.kernel_states, bits)
        step = 8 * self.block // self.num_kernel_blocks
        return inner, ("N", self.kernel_states, self.num_kernel_blocks, step)


def strides(
    spec: Spec,
    layout: str,
    num_layers: int,
    num_blocks: int,
    kernel_block_size: int = 0,
    layer_stride: int | None = None,
    block_stride: int | None = None,
) -> Strides:
    """Strides of so many layers of one specification, as vLLM's `create_kv_cache_views` has them.

    Args:
        spec: Of each of the layers.
        layout: One of `LAYOUTS`.
        num_layers: Layers that are placed together.
        num_blocks: Blocks of the pool.
        kernel_block_size: Tokens; 0: the block's.
        layer_stride: Bytes, where it is decided already (`KVCacheTensor`).
        block_stride: Bytes, likewise.

    Raises:
        UnknownPart: There is no such layout.
        Contradiction: The layout cannot hold this specification.
    """
    if layout not in LAYOUTS:
        raise UnknownPart(
            f"{layout[:MAX_QUOTED_CHARS]!r} is none of {', '.join(LAYOUTS)}", "kv_cache_layout"
        )
    states, ratio = _kernel_states(spec, kernel_block_size)
    dense = spec.num_slots * states * spec.cell_bytes
    if block_stride is not None and ratio > 1 and block_stride != dense * ratio:
        raise Contradiction(
            f"blocks {block_stride} bytes apart are no dense pages of {dense * ratio} bytes and "
            f"cannot be cut into {ratio} kernel blocks",
            "block_stride",
        )
    fixed = {"L": layer_stride, "B": block_stride and block_stride // ratio}
    last_of_grid = max(layout.index("L"), layout.index("B"))
    is_whole = last_of_grid == 1 or spec.num_slots == 1
    if spec.page_size_padded is not None and (ratio > 1 or not is_whole):
        raise Contradiction(
            f"{layout} cannot hold pages that are padded and cut up", "page_size_padded"
        )
    extents = {"L": num_layers, "B": num_blocks * ratio, "H": spec.num_slots}
    extents |= {"N": states, "C": spec.cell_bytes}
    page_bytes = {layout[last_of_grid]: spec.page_size_padded or 0}
    found = _nested(layout, extents, fixed, page_bytes)
    return Strides(found["L"], found["B"] * ratio, found["H"], found["N"], states, ratio, is_whole)


def _nested(
    layout: str,
    extents: Mapping[str, int],
    fixed: Mapping[str, int | None],
    least: Mapping[str, int],
) -> dict[str, int]:
    """By axis the bytes from an index to the next: all that is inside of it, unless told.

    Args:
        layout: The axes, outermost first.
        extents: Of each axis.
        fixed: Strides that are decided already.
        least: Bytes below which an axis's stride does not come.
    """
    strides_by_axis: dict[str, int] = {}
    step = 1
    for axis in reversed(layout):
        step = max(step, least.get(axis, 0))
        strides_by_axis[axis] = fixed.get(axis) or step
        step = strides_by_axis[axis] * extents[axis]
    return strides_by_axis


def _kernel_states(spec: Spec, kernel_block_size: int) -> tuple[int, int]:
    """States of a kernel block, and how many of those are a block."""
    if isinstance(spec, MambaSpec) or kernel_block_size in (0, spec.block_size):
        return spec.num_states, 1
    ratio, rest = divmod(spec.block_size, kernel_block_size)
    if rest or spec.num_states % ratio:
        raise Contradiction(
            f"{kernel_block_size} tokens do not divide blocks of {spec.block_size}",
            "kernel_block_size",
        )
    return spec.num_states // ratio, ratio
