"""vLLM's states of recurrent layers: flattened, or by head where the caller says which there are.

A page holds one state of each tensor of `MambaSpec.shapes`, one after the other: the convolution's,
then the recurrence's (`mamba_utils.py:MambaStateShapeCalculator` @ vLLM 0.32.0).
"""

from collections.abc import Sequence

from transload_abi.builders.vllm_interior import Interior, StatePart
from transload_abi.builders.vllm_layout import Term
from transload_abi.builders.vllm_roles import FLOATS, Page, role
from transload_abi.builders.vllm_spec import MambaSpec, dtype_of
from transload_abi.dtypes import DTYPES
from transload_abi.errors import Contradiction, UnknownPart
from transload_abi.limits import MAX_QUOTED_CHARS
from transload_abi.types import Role


def states(spec: MambaSpec, interior: Interior) -> tuple[Page, ...]:
    """A page of flattened states, or one for each number of heads."""
    dtypes = [dtype_of(name) for name in spec.dtypes]
    for dtype in dtypes:
        if dtype not in FLOATS:
            raise UnknownPart(f"{dtype} states", "dtypes")
    if interior.state_parts:
        return _by_head(spec, dtypes, interior)
    if len(spec.shapes) != 2:
        name = spec.mamba_type[:MAX_QUOTED_CHARS] or "a layer"
        raise UnknownPart(f"{len(spec.shapes)} states of {name}, not two", "shapes")
    conv_bits = DTYPES[dtypes[0]].bits
    columns, channels = _conv_shape(spec, interior)
    conv = (("N", 1, 1, 0), *_channels(columns, channels, channels, conv_bits, interior))
    ssm = (("N", 1, 1, 0), ("D", 1, spec.sizes[1], DTYPES[dtypes[1]].bits))
    roles = (
        role("conv", dtypes[0], conv),
        role("ssm", dtypes[1], ssm, spec.sizes[0] * conv_bits),
    )
    return (Page("none", roles),)


def _by_head(spec: MambaSpec, dtypes: Sequence[str], interior: Interior) -> tuple[Page, ...]:
    conv = [part for part in interior.state_parts if part.role != "ssm_h"]
    ssm = [part for part in interior.state_parts if part.role == "ssm_h"]
    if len(spec.shapes) != bool(conv) + len(ssm) or len(ssm) > 1:
        raise UnknownPart(f"{len(spec.shapes)} states of other parts", "interior.state_parts")
    roles = [_conv_part(spec, dtypes[0], conv, index, interior) for index in range(len(conv))]
    parts, start = list(conv), spec.sizes[0] * DTYPES[dtypes[0]].bits if conv else 0
    if ssm:
        roles.append(_ssm(spec, dtypes[-1], ssm[0], start))
        parts += ssm
    return tuple(
        Page(
            "none",
            tuple(each for each, part in zip(roles, parts, strict=True) if _heads(part) == heads),
            heads=heads,
        )
        for heads in dict.fromkeys(map(_heads, parts))
    )


def _heads(part: StatePart) -> tuple[int, int]:
    return part.heads, part.total_heads


def _conv_part(
    spec: MambaSpec, dtype: str, parts: Sequence[StatePart], index: int, interior: Interior
) -> Role:
    """One part of the convolution's channels."""
    bits = DTYPES[dtype].bits
    columns, channels = _conv_shape(spec, interior)
    widths = [part.heads * part.channels for part in parts]
    if sum(widths) != channels or min(widths) < 1:
        raise Contradiction(
            f"parts of {sum(widths)} channels are not the state's {channels}",
            "interior.state_parts",
        )
    step = bits if interior.conv_order == "SD" else columns * bits
    part = parts[index]
    inner = _channels(columns, part.channels, channels, bits, interior)
    head = ("H", 1, part.heads, part.channels * step)
    return role(part.role, dtype, (head, ("N", 1, 1, 0), *inner), sum(widths[:index]) * step)


def _ssm(spec: MambaSpec, dtype: str, part: StatePart, start: int) -> Role:
    """The recurrence's state, heads outermost."""
    size, rest = divmod(spec.sizes[-1], part.heads)
    if rest:
        raise Contradiction(
            f"{part.heads} heads do not divide {spec.sizes[-1]} elements", "interior.state_parts"
        )
    bits = DTYPES[dtype].bits
    terms = (("H", 1, part.heads, size * bits), ("N", 1, 1, 0), ("D", 1, size, bits))
    return role("ssm_h", dtype, terms, start)


def _conv_shape(spec: MambaSpec, interior: Interior) -> tuple[int, int]:
    """Columns and channels of the convolution's state."""
    shape = spec.shapes[0]
    if len(shape) != 2:
        raise UnknownPart(f"a convolution's state of {len(shape)} axes, not two", "shapes")
    first, second = shape
    return (first, second) if interior.conv_order == "SD" else (second, first)


def _channels(
    columns: int, count: int, channels: int, bits: int, interior: Interior
) -> tuple[Term, ...]:
    """Columns of so many of a state's channels; a channel's columns follow each other in `D`."""
    if interior.conv_order == "SD":
        return ("D", 1, columns, channels * bits), ("D", columns, count, bits)
    return (("D", 1, columns * count, bits),)
