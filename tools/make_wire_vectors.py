"""Writes the vectors of the wire protocol anew: `python tools/make_wire_vectors.py [FOLDER]`.

The folder is `tests/vectors/wire` unless told otherwise. Nothing here uses `transload_abi`; what is
read is `tests/vectors/wire/descriptors`. The same code writes the same bytes.
"""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from wire_vectors import (
    frame_cases,
    message_cases,
    payload_cases,
    proof_cases,
    refused_cases,
    session_cases,
)

VECTORS = Path(__file__).parents[1] / "tests" / "vectors" / "wire"


def documents() -> Iterator[tuple[str, object]]:
    """Every file's path below the folder, and what it says."""
    yield (
        "messages.json",
        [
            {
                "name": case.name,
                "sender": case.sender,
                "message": case.meaning,
                "is_canonical": case.is_canonical,
                "body": case.body.hex(),
            }
            for case in message_cases.accepted()
        ],
    )
    yield (
        "refused.json",
        [{**case._asdict(), "body": case.body.hex()} for case in refused_cases.refused()],
    )
    yield (
        "frames.json",
        [
            {**case._asdict(), "stream": case.stream.hex()}
            for case in (*frame_cases.accepted(), *frame_cases.refused())
        ],
    )
    yield "proofs.json", proof_cases.proofs()
    yield (
        "payloads.json",
        {
            "reads": payload_cases.reads(),
            "refused": payload_cases.refused(),
        },
    )
    for name, session in session_cases.sessions().items():
        yield f"sessions/{name}.json", session


def make(root: Path) -> None:
    """Writes all files below a folder."""
    (root / "sessions").mkdir(parents=True, exist_ok=True)
    for path, document in documents():
        (root / path).write_text(text(document))


def text(document: object) -> str:
    """JSON with one item of the outermost level, and of the lists in it, a line."""
    if isinstance(document, list):
        rows = ",\n".join(json.dumps(row, ensure_ascii=False) for row in document)
        return f"[\n{rows}\n]\n"
    assert isinstance(document, dict)
    parts = []
    for name, value in document.items():
        is_long = isinstance(value, list)
        shown = text(value).rstrip() if is_long else json.dumps(value, ensure_ascii=False)
        parts.append(f"{json.dumps(name)}: {shown}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else VECTORS)
