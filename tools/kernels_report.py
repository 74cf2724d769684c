"""Compile the GPU kernels for every architecture and rewrite the table in kernels/DESIGN.md.

Needs Triton for x86_64 and no GPU. The table stands between two comments; nothing else of the
document is touched.

Usage: ``python tools/kernels_report.py [--check]``; with ``--check`` nothing is written, and a
table that is not what the compilers say now ends it with status 1.
"""

from __future__ import annotations

import argparse
import pathlib
import sys
from collections.abc import Mapping, Sequence

from transload_kernels.gpu.compiled import ARCHITECTURES, CASES, Compiled, compile_launch, record

DESIGN = pathlib.Path(__file__).resolve().parents[1] / "kernels" / "DESIGN.md"
BEGIN = "<!-- table: tools/kernels_report.py -->\n"
END = "<!-- end of table -->\n"
HEAD = (
    "| call | GPU | registers | spilled | shared | loads | stores | instructions |",
    "|---|---|---|---|---|---|---|---|",
)


def row(name: str, architecture: str, made: Compiled) -> str:
    """A line of the table."""
    cells = (
        *(name, architecture, made.registers, made.spills, made.shared_bytes),
        *(widths(made.loads), widths(made.stores), made.instructions),
    )
    return f"| {' | '.join(str(cell) for cell in cells)} |"


def widths(counts: Mapping[int, int]) -> str:
    """Instructions by width: `4 x 128, 8 x 64`."""
    return ", ".join(f"{count} x {bits}" for bits, count in counts.items()) or "none"


def table() -> str:
    """All of it, as Markdown."""
    rows = [
        row(case.name, architecture, compile_launch(record(case), architecture))
        for case in CASES
        for architecture in ARCHITECTURES
    ]
    return "\n".join((*HEAD, *rows)) + "\n"


def rewritten(document: str, made: str) -> str:
    """The document with another table; raises `ValueError` if it has no place for one."""
    before, _, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not end:
        raise ValueError(f"no place for the table: {BEGIN.strip()} ... {END.strip()}")
    return before + BEGIN + made + END + after


def main(arguments: Sequence[str]) -> int:
    """Write or check; the status to exit with."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing")
    asked = parser.parse_args(arguments)
    document = DESIGN.read_text()
    made = table()
    print(made, end="")
    if asked.check:
        return int(rewritten(document, made) != document)
    DESIGN.write_text(rewritten(document, made))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
