"""The codecs of `kvabi/1`: the roles they have, their parameters and scales (5)."""

from typing import Any

from conformance.abi_from_the_document_fields import FLOAT, PARTS_BY_HEAD, number
from conformance.abi_from_the_document_spelling import Tree, need

_F, _E = ("f32", "f16", "bf16"), ("e4m3", "e5m2", "e4m3fnuz", "e5m2fnuz")
_Q, _S, _U4, _U8, _F16 = ("i8", "e4m3", "e4m3fnuz"), ("f32",), ("u4",), ("u8",), ("f16",)
_G, _B = ("ue8m0", "e4m3", "f32"), ("e2m1", *_E)
Dtypes = dict[str, tuple[str, ...]]  # what each role of a page may be of
_LATENT: Dtypes = {"latent": _B, "latent_scale": _G}
_CODES: Dtypes = {"k_code": _U8, "v_code": _U8, "v_scale": _F16, "v_zero": _F16}
CODECS: dict[str, list[Dtypes]] = {
    "none": [
        {"k": _F, "v": _F},
        {"latent": _F, "rope": _F},
        {"latent": _F},
        {"index_k": _F},
        {"conv": _F, "ssm": _F},
        {"state_kv": _F, "state_score": _F},
        {"index_state_kv": _F, "index_state_score": _F},
        {"index_k": _F, "position": ("i64",)},
    ],
    "fp8_per_tensor": [{"k": _E, "v": _E}, {"latent": _E, "rope": _E}],
    "per_token_head": [{"k": _Q, "v": _Q, "k_scale": _S, "v_scale": _S}],
    "int4_zero_point": [{"k": _U4, "v": _U4, "k_scale": _S, "v_scale": _S}],
    "block_scaled": [
        {"k": _B, "k_group_scale": _G, "v": _B, "v_group_scale": _G},
        _LATENT,
        _LATENT | {"rope": _F + _E},
        {"index_k": _B, "index_k_scale": _G},
    ],
    "fp8_ds_mla_656": [{"latent": ("e4m3",), "latent_scale": _S, "rope": ("bf16",)}],
    "turboquant": [_CODES, _CODES | {"k_norm": _F16}],
    "opaque": [{"page": _U8}],
}
WITHOUT_VALUES = ("turboquant", "opaque")
SCALES = ("k_scale", "v_scale", "k_group_scale", "v_group_scale", "latent_scale", "index_k_scale")


def has_values(g: Tree, name: str) -> bool:
    """Whether the elements of a role are numbers."""
    return g["codec"]["id"] not in WITHOUT_VALUES and name != "position"


def value_roles(g: Tree) -> list[str]:
    """The roles of a group but for the scales of others (8)."""
    names = [role["role"] for role in g["roles"]]
    return [name for name in names if name not in SCALES or g["codec"]["id"] in WITHOUT_VALUES]


def page_scale(g: Tree, name: str) -> str:
    """The role that holds a role's scales, or nothing."""
    names = [role["role"] for role in g["roles"]]
    return next((s for s in (f"{name}_scale", f"{name}_group_scale") if s in names), "")


def param_scale(g: Tree, name: str, layer: int) -> str:
    """The `f32:` by which a role is multiplied in a layer of the model, or nothing."""
    scales = g["codec"]["params"].get(f"scales.{name}")
    return str(scales[g["layers"].index(layer)]) if scales else ""


def check_codec(g: Tree, path: str) -> None:
    """Refuse roles, dtypes and parameters that are not of the codec (5; 6, rule 3)."""
    codec, params = g["codec"]["id"], g["codec"]["params"]
    need(codec in CODECS, f"{path}.codec.id", "the codec is unknown")
    dtypes = _dtypes(codec, {role["role"] for role in g["roles"]})
    need(dtypes, f"{path}.roles", f"codec {codec} has other roles")
    for i, role in enumerate(g["roles"]):
        right = role["dtype"] in dtypes[role["role"]]
        need(right, f"{path}.roles[{i}].dtype", "not of the codec")
    need(codec != "opaque" or g["opaque"], f"{path}.opaque", "is empty")
    _check_groups_of_elements(g, path)
    where = f"{path}.codec.params"
    checks = _checks(g)
    for name in params:
        need(name in checks, f"{where}.{name}", "a parameter that is not known")
        checks[name](params[name], f"{where}.{name}", len(g["layers"]))
    scaled = [f"scales.{name}" for name in dtypes if f"scales.{name}" in checks]
    demanded = scaled if codec == "fp8_per_tensor" or any(s in params for s in scaled) else []
    if codec == "turboquant":
        demanded = list(checks)
    for name in demanded:
        need(name in params, f"{where}.{name}", "is not there")


def _dtypes(codec: str, names: set[str]) -> Dtypes:
    """What each role may be of, if a codec has a page of these roles."""
    if codec == "none" and names and names <= set(PARTS_BY_HEAD):
        return dict.fromkeys(names, _F)
    return next((roles for roles in CODECS[codec] if set(roles) == names), {})


def _check_groups_of_elements(g: Tree, path: str) -> None:
    codec = g["codec"]["id"]
    roles = {role["role"]: role for role in g["roles"]}
    for i, role in enumerate(g["roles"]):
        scale = page_scale(g, role["role"])
        if codec == "block_scaled" and scale:
            size, rest = divmod(role["shape"]["D"], roles[scale]["shape"]["G"])
            need(rest == 0 and size > 1, f"{path}.roles[{i}].shape.D", "no groups of elements")
    if "latent_scale" in roles and "rope" in roles:
        dtypes = [roles[name]["dtype"] for name in ("latent", "latent_scale", "rope")]
        of_656 = dtypes == ["e4m3", "f32", "bf16"]
        of_656 &= roles["latent"]["shape"]["D"] == 128 * roles["latent_scale"]["shape"]["G"]
        if codec == "fp8_ds_mla_656":
            need(of_656, f"{path}.roles", "expected a scale for each 128 elements")
        elif not g["codec"]["params"]:
            need(not of_656, f"{path}.codec.id", "fp8_ds_mla_656 says this")


# --- parameters ----------------------------------------------------------------------------------


def _checks(g: Tree) -> dict[str, Any]:
    """What looks at each parameter that a group may have."""
    codec, names = g["codec"]["id"], [role["role"] for role in g["roles"]]
    scaled = [name for name in names if page_scale(g, name)]
    checks: dict[str, Any] = {}
    if codec in ("fp8_per_tensor", "block_scaled"):
        with_scales = names if codec == "fp8_per_tensor" else scaled
        checks |= {f"scales.{name}": _check_scales for name in with_scales}
    if codec in ("int4_zero_point", "block_scaled"):
        checks |= {f"rotation.{name}": _check_name for name in scaled}
    if codec == "turboquant":
        checks |= {"tables": _check_name, "key_bits": _check_bits, "value_bits": _check_bits}
    return checks


def _check_scales(scales: Any, path: str, num_layers: int) -> None:
    right = isinstance(scales, list) and len(scales) == num_layers
    need(right, path, "expected a scale for each layer")
    for i, scale in enumerate(scales):
        is_single = isinstance(scale, str) and FLOAT.fullmatch(scale) and scale[1] == "3"
        need(is_single and number(scale) > 0, f"{path}[{i}]", "expected f32:, above zero")


def _check_name(text: Any, path: str, _: int) -> None:
    need(isinstance(text, str) and text, path, "expected a text that is not empty")


def _check_bits(bits: Any, path: str, _: int) -> None:
    need(isinstance(bits, int) and 1 <= bits <= 8, path, "not within 1 .. 8")
