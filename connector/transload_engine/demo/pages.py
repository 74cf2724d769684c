"""How the two engines' pages differ, in the words of `transload abi`.

Needs torch, whose import takes seconds; so this is imported while engines start.
"""

from pathlib import Path

from transload_abi.cli_diff import diff_text
from transload_abi.picture import page_map
from transload_abi.types import Descriptor
from transload_engine.demo.stage import DECODE, KV_DTYPE, MODEL, PREFILL, Placement
from transload_engine.model.checkpoint import load_weights
from transload_engine.model.config import ModelConfig, read_config
from transload_engine.model.placements import KvSettings, ModelName, make_descriptor
from transload_engine.server.model_command import KV_DTYPES


def pages_text(model: Path) -> str:
    """A map of a page of each engine, what differs, and what that means for moving blocks.

    Args:
        model: The checkpoint's folder.
    """
    config = read_config(model)
    name = ModelName(MODEL, weights=load_weights(model, config).digest)
    prefill, decode = (_describe(config, name, placement) for placement in (PREFILL, DECODE))
    parts = [_page("prefill", PREFILL, prefill), _page("decode", DECODE, decode)]
    return "\n".join([*parts, diff_text(("prefill", "decode"), prefill, decode)[0]])


def _describe(config: ModelConfig, name: ModelName, placement: Placement) -> Descriptor:
    """As the engine itself describes its cache."""
    settings = KvSettings(
        placement.layout, placement.block_size, placement.num_blocks, KV_DTYPES[KV_DTYPE]
    )
    return make_descriptor(config, settings, name)


def _page(name: str, placement: Placement, found: Descriptor) -> str:
    (group,) = found.groups
    title = f"a page of {name}'s cache: {placement.layout}, {placement.block_size} tokens"
    return f"{title}\n{page_map(group)}\n"
