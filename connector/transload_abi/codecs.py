"""The codecs this version knows: which roles and parameters each has, and what a value is.

==================  ===================================  ===========================================
id                  roles                                value of an element
==================  ===================================  ===========================================
none                k, v / latent, rope / conv, ssm      the element itself
fp8_per_tensor      k, v / latent, rope (8-bit floats)   element * `scales[role][layer position]`
per_token_head      k, k_scale, v, v_scale               element * scale of the same head and state
fp8_ds_mla_656      latent, latent_scale, rope           latent: element * scale of its 128; rope:
                                                         the element itself
==================  ===================================  ===========================================
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple


class CodecRule(NamedTuple):
    """One codec.

    Attributes:
        role_sets: The sets of roles a page may have, each with the dtypes allowed per role.
        scale_role: By value role, the role that holds its scales inside the page.
        group_elements: By value role, how many consecutive `D` share a scale of the `G` axis.
        has_scales_param: Whether a parameter `scales.<role>` is due for each role: a list of `f32:`
            texts, one per layer of the group.
    """

    role_sets: tuple[dict[str, frozenset[str]], ...]
    scale_role: Mapping[str, str] = MappingProxyType({})
    group_elements: Mapping[str, int] = MappingProxyType({})
    has_scales_param: bool = False


_FLOATS: Final = frozenset({"f32", "f16", "bf16"})
_FP8: Final = frozenset({"e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz"})

CODECS: Final[dict[str, CodecRule]] = {
    "none": CodecRule(
        (
            {"k": _FLOATS, "v": _FLOATS},
            {"latent": _FLOATS, "rope": _FLOATS},
            {"conv": _FLOATS, "ssm": _FLOATS},
        )
    ),
    "fp8_per_tensor": CodecRule(
        ({"k": _FP8, "v": _FP8}, {"latent": _FP8, "rope": _FP8}), has_scales_param=True
    ),
    "per_token_head": CodecRule(
        (
            {
                "k": frozenset({"i8", "e4m3", "e4m3fnuz"}),
                "k_scale": frozenset({"f32"}),
                "v": frozenset({"i8", "e4m3", "e4m3fnuz"}),
                "v_scale": frozenset({"f32"}),
            },
        ),
        scale_role={"k": "k_scale", "v": "v_scale"},
    ),
    "fp8_ds_mla_656": CodecRule(
        (
            {
                "latent": frozenset({"e4m3"}),
                "latent_scale": frozenset({"f32"}),
                "rope": frozenset({"bf16"}),
            },
        ),
        scale_role={"latent": "latent_scale"},
        group_elements={"latent": 128},
    ),
}
"""By id. Parameters of `fp8_per_tensor`: `scales.<role>`, a list of `f32:` texts, one per layer in
the order of `Group.layers`; the other codecs have none."""


def scale_param(role: str) -> str:
    """The name of the parameter that holds a role's scales per layer."""
    return f"scales.{role}"
