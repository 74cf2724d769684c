"""Which way the conversion of one role goes: by a kernel in place, by one in scratch, or by torch.

`convert_rows` takes rows of elements that lie together, in loops of one stride on each side, and
finds scales in the buffer of their elements, those of a row at even distances. What lies otherwise
is gathered into scratch first and scattered from there. What no kernel knows the numbers of is
converted by `kernel_calls_numbers`, in scratch as well.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, Literal, NamedTuple, cast

from transload_abi.dtypes import DTYPES
from transload_abi.floats import read_float
from transload_abi.plan.types import Conversion, Operand
from transload_connector.transports.kernel_calls_numbers import Numbers
from transload_kernels.formats import ELEMENT_BITS, ElementType, Format, ScaleType

Way = Literal["kernel", "kernel in scratch", "torch in scratch"]

_KERNEL_SCALES: Final = ("f32", "ue8m0")
"""Dtypes of scales in a page that `convert_rows` reads and makes."""

_ZERO_POINT: Final = "int4_zero_point"


class Route(NamedTuple):
    """How a conversion is carried out.

    Attributes:
        way: By whom, and where.
        why: What keeps it from a better way; empty where nothing does.
    """

    way: Way
    why: str = ""


def route(conversion: Conversion) -> Route:
    """The best way that a conversion can go."""
    sides = (conversion.src, conversion.dst)
    of = numbers_of(conversion, "src"), numbers_of(conversion, "dst")
    unknown = _unknown(of[0]) or _unknown(of[1]) or _unwritten(of[1])
    if unknown:
        return Route("torch in scratch", unknown)
    for name, side in zip(("source", "destination"), sides, strict=True):
        if len({operand.side.pool for operand in side}) > 1:
            return Route("kernel in scratch", f"the {name}'s scales lie in another pool")
        if not is_flat(side[0]):
            return Route("kernel in scratch", f"the {name}'s elements do not lie in rows")
        if len(side) > 1 and not _is_even(side[1]):
            why = f"the {name}'s scales of a row do not lie at even distances"
            return Route("kernel in scratch", why)
    for axis in conversion.src[0].shape:
        if axis != "D" and not are_nested(cuts_of(axis, conversion)):
            return Route("kernel in scratch", f"no loops walk {axis} on both sides")
    return Route("kernel")


def cuts_of(axis: str, conversion: Conversion) -> list[int]:
    """Where an axis of rows is cut by any operand: 1 first, its extent last."""
    extent = conversion.src[0].shape[axis]
    cuts = {1, extent}
    for operand in (*conversion.src, *conversion.dst):
        for name, div, count, _ in operand.terms:
            if name == axis:
                cuts |= {div, div * count}
    return sorted(cut for cut in cuts if cut <= extent)


def are_nested(cuts: Sequence[int]) -> bool:
    """Whether each cut divides the next: loops between them visit each index once."""
    return all(high % low == 0 for low, high in pairwise(cuts))


def numbers_of(conversion: Conversion, side: Literal["src", "dst"]) -> Numbers:
    """What the elements of one side are worth."""
    codec = conversion.src_codec if side == "src" else conversion.dst_codec
    operands = conversion.src if side == "src" else conversion.dst
    outside = None if operands[0].values is None else read_float(operands[0].values)
    scale_dtype = operands[1].dtype if len(operands) > 1 else ""
    return Numbers(codec, operands[0].dtype, scale_dtype, group_elements(operands), outside)


def group_elements(side: Sequence[Operand]) -> int:
    """Elements of a row that share a scale in the page; 0: there is none."""
    return side[0].shape["D"] // side[1].shape.get("G", 1) if len(side) > 1 else 0


def format_of(of: Numbers) -> Format:
    """What the kernels call such numbers; they know them."""
    element = cast("ElementType", of.dtype)
    if of.codec == _ZERO_POINT:
        return Format(element, "f32_zero4", of.group_elements)
    if of.scale_dtype:
        return Format(element, cast("ScaleType", of.scale_dtype), of.group_elements)
    if of.outside is not None:
        return Format(element, "tensor", 0, of.outside)
    return Format(element)


def is_flat(operand: Operand) -> bool:
    """Whether each row of `D` lies together, and at whole bytes."""
    bits = DTYPES[operand.dtype].bits
    rows = [term for term in operand.terms if term[0] == "D" and term[2] > 1]
    others = (term[3] for term in operand.terms if term[0] != "D")
    is_row = len(rows) == 1 and rows[0][3] == bits
    is_whole = not operand.bit and operand.shape["D"] * bits % 8 == 0
    return (is_row or operand.shape["D"] == 1) and is_whole and not any(one % 8 for one in others)


def _is_even(scales: Operand) -> bool:
    """Whether the scales of a row lie at one distance from each other."""
    groups = sorted(term[1:] for term in scales.terms if term[0] == "G" and term[2] > 1)
    return all(stride == div * groups[0][2] for div, _, stride in groups)


def _unknown(of: Numbers) -> str:
    """Why the kernels do not know such numbers; empty where they do."""
    if of.dtype not in ELEMENT_BITS:
        return f"no kernel knows {of.dtype}"
    if of.scale_dtype and of.scale_dtype not in _KERNEL_SCALES:
        return f"no kernel knows scales of {of.scale_dtype}"
    if of.scale_dtype and of.outside is not None:
        return "no kernel knows a layer's scale beside those of the page"
    return ""


def _unwritten(of: Numbers) -> str:
    """Why the kernels do not make such numbers, even if they can read them; empty where they do."""
    # Their zero points are made as vLLM makes them: from a range that has 0 in it.
    if of.codec == _ZERO_POINT:
        return "no kernel makes zero points as kvabi/1 does"
    # They compare the peak itself with powers of two, where the document rounds its quotient: peaks
    # near binary32's least numbers come out under another scale.
    if of.scale_dtype == "ue8m0":
        return "no kernel makes ue8m0 scales as kvabi/1 does"
    return ""
