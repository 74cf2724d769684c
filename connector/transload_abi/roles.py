"""The roles an element can have in a page, and which axes each has."""

from typing import Final, NamedTuple


class RoleRule(NamedTuple):
    """One role.

    Attributes:
        axes: The axes it has, in the order in which decoded tensors give them.
        meaning: For people.
    """

    axes: tuple[str, ...]
    meaning: str


ROLES: Final[dict[str, RoleRule]] = {
    "k": RoleRule(("H", "N", "D"), "keys"),
    "v": RoleRule(("H", "N", "D"), "values"),
    "k_scale": RoleRule(("H", "N"), "one scale per token and head of the keys"),
    "v_scale": RoleRule(("H", "N"), "one scale per token and head of the values"),
    "latent": RoleRule(("N", "D"), "MLA's compressed keys and values"),
    "latent_scale": RoleRule(("N", "G"), "one scale per token and group of the latent's elements"),
    "rope": RoleRule(("N", "D"), "MLA's rotary part of the keys"),
    "conv": RoleRule(("N", "D"), "a recurrent layer's convolution state, flattened"),
    "ssm": RoleRule(("N", "D"), "a recurrent layer's state, flattened"),
}
"""By name. Axes: `H` head, `N` state in the block, `D` element, `G` group that shares a scale."""
