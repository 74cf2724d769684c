"""Writes the conformance vectors of the KV ABI anew: `python tools/make_abi_vectors.py [FOLDER]`.

`decode/` and `convert/` below the folder (`tests/vectors/abi` unless told otherwise) are replaced,
and so is what `accepted/` holds beside the documents that were written by hand. The same code
writes the same bytes everywhere.
"""

import json
import shutil
import sys
from pathlib import Path

from abi_vectors.convert_cases import convert_cases
from abi_vectors.decode_cases import decode_cases
from abi_vectors.files import write_accepted, write_convert, write_decode, write_refusal
from abi_vectors.format_cases import format_cases
from abi_vectors.format_refusals import format_refusals
from abi_vectors.refusals import refusals
from abi_vectors.sorts_cases import sorts_cases

VECTORS = Path(__file__).parents[1] / "tests" / "vectors" / "abi"


def make(root: Path) -> None:
    """Writes `decode/`, `convert/` and `accepted/` below a folder, in place of what is there."""
    for name in ("decode", "convert"):
        shutil.rmtree(root / name, ignore_errors=True)
    decodes = [*decode_cases(), *format_cases(), *sorts_cases()]
    for seed, decode in enumerate(decodes):
        write_decode(root, decode, seed)
    for convert in convert_cases():
        write_convert(root, convert)
    for refusal in [*refusals(), *format_refusals()]:
        write_refusal(root, refusal)
    plain = json.loads((VECTORS / "accepted" / "plain.json").read_bytes())
    write_accepted(root, decodes, plain)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else VECTORS)
