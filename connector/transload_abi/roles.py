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
    "k_group_scale": RoleRule(("H", "N", "G"), "one scale per head, token and group of the keys"),
    "v_group_scale": RoleRule(("H", "N", "G"), "one scale per head, token and group of the values"),
    "k_code": RoleRule(("H", "N", "D"), "keys as packed codes, counted in bytes"),
    "k_norm": RoleRule(("H", "N"), "one norm per token and head of the coded keys"),
    "v_code": RoleRule(("H", "N", "D"), "values as packed codes, counted in bytes"),
    "v_zero": RoleRule(("H", "N"), "what code 0 stands for, per token and head of the values"),
    "latent": RoleRule(("N", "D"), "MLA's compressed keys and values"),
    "latent_scale": RoleRule(("N", "G"), "one scale per token and group of the latent's elements"),
    "rope": RoleRule(("N", "D"), "MLA's rotary part of the keys"),
    "index_k": RoleRule(("N", "D"), "keys by which a sparse attention chooses tokens"),
    "index_k_scale": RoleRule(("N", "G"), "one scale per state and group of such a key's elements"),
    "position": RoleRule(("N", "D"), "positions of a ring's rows"),
    "state_kv": RoleRule(("N", "D"), "rows that a compressor has yet to compress"),
    "state_score": RoleRule(("N", "D"), "their scores"),
    "index_state_kv": RoleRule(("N", "D"), "such rows of the compressor of index keys"),
    "index_state_score": RoleRule(("N", "D"), "their scores"),
    "conv": RoleRule(("N", "D"), "a recurrent layer's convolution state, flattened"),
    "ssm": RoleRule(("N", "D"), "a recurrent layer's state, flattened"),
    "ssm_h": RoleRule(("H", "N", "D"), "a recurrent layer's state, by head"),
    "conv_q": RoleRule(("H", "N", "D"), "the part of a convolution's state for queries, by head"),
    "conv_k": RoleRule(("H", "N", "D"), "the part for keys"),
    "conv_v": RoleRule(("H", "N", "D"), "the part for values"),
    "conv_x": RoleRule(("H", "N", "D"), "the part for the input of a Mamba layer"),
    "conv_b": RoleRule(("H", "N", "D"), "the part for its B, whose heads are called groups"),
    "conv_c": RoleRule(("H", "N", "D"), "the part for its C"),
    "page": RoleRule(("D",), "all bytes of a page whose inside nobody describes"),
}
"""By name. Axes: `H` head, `N` state in the block, `D` element, `G` group that shares a scale."""
