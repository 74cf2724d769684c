"""Records what torch makes of small floats: the numbers that the vectors rest on.

Runs with a Python that has torch, and vLLM for its table of `e2m1`, which torch does not convert::

    python -P tools/abi_vectors/record_numbers.py > tests/vectors/numbers.json

`decode.DTYPE`: for each bit pattern from 0 (all of a type of 8 or 4 bits, every 251st of `bf16` and
`f16`) the binary32 as eight hex digits, `nan` for any NaN. `encode.DTYPE`: pairs of a binary32
within the type's range and the bit pattern that it is rounded to.
"""

import importlib
import itertools
import json
import random
import struct
from typing import Any

torch: Any = importlib.import_module("torch")
ultraquant: Any = importlib.import_module("vllm.v1.attention.ops.ultraquant.format")

_TYPES = {
    "e4m3": torch.float8_e4m3fn,
    "e5m2": torch.float8_e5m2,
    "e4m3fnuz": torch.float8_e4m3fnuz,
    "e5m2fnuz": torch.float8_e5m2fnuz,
    "bf16": torch.bfloat16,
    "f16": torch.float16,
}
_STEP = 251


def hex_of(value: float) -> str:
    """Eight hex digits of a binary32, or `nan`."""
    return "nan" if value != value else struct.pack(">f", value).hex()


def patterns(kind: Any) -> tuple[Any, list[float]]:
    """The patterns looked at, and their values."""
    if kind.itemsize == 1:
        bits = torch.arange(256, dtype=torch.int16).to(torch.uint8)
    else:
        bits = torch.arange(0, 65536, _STEP, dtype=torch.int32).to(torch.uint16)
    return bits, bits.view(kind).float().tolist()


def samples(kind: Any, rng: random.Random) -> list[float]:
    """Binary32 values in the type's range: its own, those between, and halfway ones."""
    largest = torch.finfo(kind).max
    own = sorted(value for value in patterns(kind)[1] if abs(value) <= largest)
    near = list(itertools.pairwise(own))
    values = [*own, *((low + high) / 2 for low, high in near)]
    values += [low + (high - low) * rng.random() for low, high in near]
    smallest = min(value for value in own if value > 0)
    values += [smallest * rng.random() for _ in range(20)]
    binary32: list[float] = torch.tensor(rng.sample(values, 300), dtype=torch.float32).tolist()
    return binary32


def main() -> None:
    """Prints the recording."""
    rng = random.Random(1)
    decode, encode = {}, {}
    for name, kind in _TYPES.items():
        decode[name] = [hex_of(value) for value in patterns(kind)[1]]
        wide = samples(kind, rng)
        unsigned = torch.uint8 if kind.itemsize == 1 else torch.uint16
        narrow = torch.tensor(wide).to(kind).view(unsigned).to(torch.int32).tolist()
        encode[name] = [[hex_of(value), bits] for value, bits in zip(wide, narrow, strict=True)]
    # Never rounded to: a scale of this type is not the nearest one.
    decode["ue8m0"] = [hex_of(value) for value in patterns(torch.float8_e8m0fnu)[1]]
    decode["e2m1"] = [hex_of(value) for value in ultraquant.FP4_BITS_TO_VALUE]
    recording = {"torch": torch.__version__, "step": {"bf16": _STEP, "f16": _STEP}}
    print(json.dumps({**recording, "decode": decode, "encode": encode}, separators=(",", ":")))


if __name__ == "__main__":
    main()
