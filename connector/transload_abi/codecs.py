"""The codecs this version knows: which roles and parameters each has, and what a value is.

==================  ===================================  ===========================================
id                  roles                                value of an element
==================  ===================================  ===========================================
none                k, v / latent, rope / latent /       the element itself
                    index_k / states, rings
fp8_per_tensor      k, v / latent, rope (8-bit floats)   element * `scales[role][layer position]`
per_token_head      k, k_scale, v, v_scale               element * scale of the same head and state
int4_zero_point     k, k_scale, v, v_scale               (element - zero point) * scale; both are in
                                                         the scale's pattern
block_scaled        k, k_group_scale, v, v_group_scale   element * scale of its group, * a scale of
                    / latent, latent_scale, [rope]       the layer where there is one; rope: the
                    / index_k, index_k_scale             element itself
fp8_ds_mla_656      latent, latent_scale, rope           latent: element * scale of its 128; rope:
                                                         the element itself
turboquant          codes and what belongs to them       nobody's but its owner's: moved, not read
opaque              page                                 likewise
==================  ===================================  ===========================================
"""

from collections.abc import Mapping
from itertools import combinations
from types import MappingProxyType
from typing import Final, NamedTuple


class CodecRule(NamedTuple):
    """One codec.

    Attributes:
        role_sets: The sets of roles a page may have, each with the dtypes allowed per role.
        scale_role: By value role, the role that holds its scales inside the page.
        group_elements: By value role, how many consecutive `D` share a scale of the `G` axis; 0: as
            many as `D` has for each `G`.
        has_scales_param: Whether a parameter `scales.<role>` is due for each role: a list of `f32:`
            texts, one per layer of the group.
        may_have_scales_param: Whether such a parameter may stand for each role that has scales
            inside the page; for all of them or for none.
        may_be_rotated: Whether a parameter `rotation.<role>` may stand for each role that has
            scales inside the page.
        text_params: Parameters of text that are due.
        integer_params: Parameters of integers that are due.
        has_values: Whether elements are numbers to others than their owner.
    """

    role_sets: tuple[dict[str, frozenset[str]], ...]
    scale_role: Mapping[str, str] = MappingProxyType({})
    group_elements: Mapping[str, int] = MappingProxyType({})
    has_scales_param: bool = False
    may_have_scales_param: bool = False
    may_be_rotated: bool = False
    text_params: tuple[str, ...] = ()
    integer_params: tuple[str, ...] = ()
    has_values: bool = True


_FLOATS: Final = frozenset({"f32", "f16", "bf16"})
_FP8: Final = frozenset({"e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"})
_F32: Final = frozenset({"f32"})
_F16: Final = frozenset({"f16"})
_U8: Final = frozenset({"u8"})
_SMALL: Final = _FP8 | {"e2m1"}
_GROUP_SCALES: Final = frozenset({"ue8m0", "e4m3", "f32"})

_STATE_PARTS: Final = ("ssm_h", "conv_q", "conv_k", "conv_v", "conv_x", "conv_b", "conv_c")


def _state_sets() -> tuple[dict[str, frozenset[str]], ...]:
    """Every choice of a recurrent layer's parts: parts of one owner slice share a group."""
    return tuple(
        dict.fromkeys(parts, _FLOATS)
        for count in range(1, len(_STATE_PARTS) + 1)
        for parts in combinations(_STATE_PARTS, count)
    )


CODECS: Final[dict[str, CodecRule]] = {
    "none": CodecRule(
        (
            {"k": _FLOATS, "v": _FLOATS},
            {"latent": _FLOATS, "rope": _FLOATS},
            {"latent": _FLOATS},
            {"index_k": _FLOATS},
            {"index_k": _FLOATS, "position": frozenset({"i64"})},
            {"state_kv": _FLOATS, "state_score": _FLOATS},
            {"index_state_kv": _FLOATS, "index_state_score": _FLOATS},
            {"conv": _FLOATS, "ssm": _FLOATS},
            *_state_sets(),
        )
    ),
    "fp8_per_tensor": CodecRule(
        ({"k": _FP8, "v": _FP8}, {"latent": _FP8, "rope": _FP8}), has_scales_param=True
    ),
    "per_token_head": CodecRule(
        (
            {
                "k": frozenset({"i8", "e4m3", "e4m3fnuz"}),
                "k_scale": _F32,
                "v": frozenset({"i8", "e4m3", "e4m3fnuz"}),
                "v_scale": _F32,
            },
        ),
        scale_role={"k": "k_scale", "v": "v_scale"},
    ),
    "int4_zero_point": CodecRule(
        (
            {
                "k": frozenset({"u4"}),
                "k_scale": _F32,
                "v": frozenset({"u4"}),
                "v_scale": _F32,
            },
        ),
        scale_role={"k": "k_scale", "v": "v_scale"},
        may_be_rotated=True,
    ),
    "block_scaled": CodecRule(
        (
            {"k": _SMALL, "k_group_scale": _GROUP_SCALES}
            | {"v": _SMALL, "v_group_scale": _GROUP_SCALES},
            {"latent": _SMALL, "latent_scale": _GROUP_SCALES},
            {"latent": _SMALL, "latent_scale": _GROUP_SCALES, "rope": _FLOATS | _FP8},
            {"index_k": _SMALL, "index_k_scale": _GROUP_SCALES},
        ),
        scale_role={
            "k": "k_group_scale",
            "v": "v_group_scale",
            "latent": "latent_scale",
            "index_k": "index_k_scale",
        },
        group_elements={"k": 0, "v": 0, "latent": 0, "index_k": 0},
        may_have_scales_param=True,
        may_be_rotated=True,
    ),
    "fp8_ds_mla_656": CodecRule(
        (
            {
                "latent": frozenset({"e4m3"}),
                "latent_scale": _F32,
                "rope": frozenset({"bf16"}),
            },
        ),
        scale_role={"latent": "latent_scale"},
        group_elements={"latent": 128},
    ),
    "turboquant": CodecRule(
        (
            {"k_code": _U8, "v_code": _U8, "v_scale": _F16, "v_zero": _F16},
            {"k_code": _U8, "k_norm": _F16, "v_code": _U8, "v_scale": _F16, "v_zero": _F16},
        ),
        text_params=("tables",),
        integer_params=("key_bits", "value_bits"),
        has_values=False,
    ),
    "opaque": CodecRule(({"page": _U8},), has_values=False),
}
"""By id. `scales.<role>` is a list of `f32:` texts, one per layer in the order of `Group.layers`.
`rotation.<role>` names what was done to the elements before they were rounded (`sha256:` and the
digest of a sign vector); `tables` in the same way what codes stand for."""


def scale_param(role: str) -> str:
    """The name of the parameter that holds a role's scales per layer."""
    return f"scales.{role}"


def rotation_param(role: str) -> str:
    """The name of the parameter that names a role's rotation."""
    return f"rotation.{role}"
