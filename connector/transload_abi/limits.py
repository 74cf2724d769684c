"""How large a descriptor may be: what every reader must accept, and where every reader must stop.

A reader refuses what is beyond these before it spends time or memory on it.
"""

from typing import Final

MAX_DOCUMENT_BYTES: Final = 1 << 20
"""Of either encoding. 100 layers take 4 kB in one pool, scales included; 23 kB in 200 buffers."""

MAX_DEPTH: Final = 12
"""Of nested arrays and objects; a descriptor without extensions needs 7."""

MAX_INTEGER: Final = (1 << 53) - 1
"""Of any number: what JSON carries exactly everywhere. Also of any bit address."""

MAX_TEXT_CHARS: Final = 512
"""Of any string, counted in code points."""

MAX_POOLS: Final = 4096
"""Two separate buffers per layer for 1,024 layers leave room for as many again."""

MAX_GROUPS: Final = 256
MAX_LAYERS: Final = 4096
MAX_PLACES: Final = 16
MAX_ROLES: Final = 16
MAX_TERMS: Final = 16
MAX_PARAMS: Final = 64
"""Of a codec or of a RoPE description."""

MAX_PARAM_ITEMS: Final = 8192
"""Of one list among the parameters."""

MAX_HEADS: Final = 1 << 16
MAX_BLOCKS: Final = 1 << 32
MAX_BLOCK_TOKENS: Final = 1 << 20
MAX_AXIS: Final = 1 << 20
"""Extent of one axis of a role."""

MAX_PIECES: Final = 1 << 18
"""Into how many pieces a page may be cut to see whether its parts overlap."""

MAX_COPIES: Final = 1 << 16
"""And conversions, of one piece of a pair. Keys and values of 1,024 layers in buffers of their own
take 2,048."""

MAX_ROWS: Final = 1 << 25
"""Of an array that a plan is written down as: 1.6 GB of NIXL's rows for both sides."""

MAX_QUOTED_CHARS: Final = 80
"""Of a stranger's text in an error message."""
