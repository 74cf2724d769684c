"""What was fastest on a device, for runs of a length and a count: measured once, kept in a file.

A file belongs to one device: name, driver, and the version of this package. It is written whole or
not at all, and read with suspicion: a file that is broken, or of another device or version, is
left alone, with one warning, and counted; what it would have said is then not known, and the
defaults hold. Nothing here starts to measure by itself.

**Format** (JSON, at most `MAX_FILE_BYTES`)::

    {"format": 1, "device": {"name": ..., "driver": ..., "version": ...},
     "cells": [{"op": "relayout_rows", "run_bytes": 512, "num_runs": 4096,
                "implementation": "triton", "parameters": {"num_programs": 12}, "seconds": 1e-4}]}

A cell answers for its nearest neighbours by powers of two; a reader refuses fields it does not
know, and a writer that needs other ones raises `format`.
"""

import json
import logging
import math
import os
import re
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple, Protocol

from transload_kernels.errors import BadArgument

FORMAT: Final = 1
MAX_FILE_BYTES: Final = 1 << 20
MAX_CELLS: Final = 4096
FURTHEST: Final = 2.0
"""Powers of two, of length and count together, beyond which a cell says nothing of a call."""

OPERATIONS: Final = frozenset(
    {
        *("copy_runs", "relayout_rows", "transpose_pages"),
        *("convert_rows", "zero_tail", "digest_blocks"),
    }
)

PARAMETERS: Final[Mapping[str, range]] = {
    "num_programs": range(0, 1025),
    "tile_units": range(64, 8193),
    "num_threads": range(64, 1025),
}
"""Fields of `gpu.launch.Tuning`, and what they may be; all but the first are powers of two."""

_log = logging.getLogger(__name__)


class Device(NamedTuple):
    """Whose measurements they are; any text."""

    name: str
    driver: str
    version: str


class Candidate(NamedTuple):
    """A way to do a call.

    Attributes:
        implementation: Its name.
        parameters: Of `PARAMETERS`, sorted by name; empty for defaults.
    """

    implementation: str
    parameters: tuple[tuple[str, int], ...] = ()


class Cell(NamedTuple):
    """What was fastest for calls of one size.

    Attributes:
        op: Name of the operation.
        run_bytes: Bytes of each run, or row.
        num_runs: Of the call.
        best: Who was.
        seconds: That it took.
    """

    op: str
    run_bytes: int
    num_runs: int
    best: Candidate
    seconds: float


class Stopwatch(Protocol):
    """Measures one call."""

    def seconds(self, call: Callable[[], object]) -> float:
        """Make the call, wait until it is done, return how long that took."""


class Table:
    """Cells of one device, to be asked for the nearest."""

    def __init__(self, cells: Iterable[Cell] = ()) -> None:
        self.cells = tuple(cells)

    def best(self, op: str, run_bytes: int, num_runs: int) -> Candidate | None:
        """Who was fastest at the nearest size; None: nothing near was measured."""
        near = [
            (_distance(cell, run_bytes, num_runs), index)
            for index, cell in enumerate(self.cells)
            if cell.op == op
        ]
        distance, index = min(near, default=(math.inf, -1))
        return self.cells[index].best if distance <= FURTHEST else None


def _distance(cell: Cell, run_bytes: int, num_runs: int) -> float:
    of_length = math.log2(max(run_bytes, 1)) - math.log2(cell.run_bytes)
    of_count = math.log2(max(num_runs, 1)) - math.log2(cell.num_runs)
    return math.hypot(of_length, of_count)


class Store:
    """Tables in a folder, one file for each device.

    Args:
        folder: Made when something is written; `default_folder()` is the user's.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._ignored: dict[Path, str] = {}

    def path_of(self, device: Device) -> Path:
        """The device's file: named after it, told apart by all of its text."""
        spelled = re.sub(r"[^A-Za-z0-9.]+", "-", "_".join(device)).strip("-")
        return self._folder / f"{spelled[:100]}-{_fingerprint(device)}.json"

    def load(self, device: Device) -> Table:
        """The device's table; empty if nothing was measured, or the file is ignored."""
        path = self.path_of(device)
        try:
            with path.open("rb") as file:
                data = file.read(MAX_FILE_BYTES + 1)
        except FileNotFoundError:
            return Table()
        except OSError as error:
            return self._ignore(path, str(error))
        try:
            return decode(data, device)
        except BadArgument as error:
            return self._ignore(path, str(error))

    def save(self, device: Device, table: Table) -> Path:
        """Write the device's file whole: who reads at the same time sees the old one or this."""
        path = self.path_of(device)
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=self._folder, suffix=".part", delete=False) as file:
            part = Path(file.name)
            try:
                file.write(encode(device, table))
                file.flush()
                os.fsync(file.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
        self._ignored.pop(path, None)
        return path

    def num_ignored(self) -> int:
        """Files that were there and could not be used."""
        return len(self._ignored)

    def explain(self) -> str:
        """What was ignored and why, a line each; empty if nothing was."""
        return "\n".join(f"autotune: ignored {path}: {why}" for path, why in self._ignored.items())

    def _ignore(self, path: Path, why: str) -> Table:
        if path not in self._ignored:
            _log.warning("autotune: ignored %s: %s; defaults are used", path, why)
        self._ignored[path] = why
        return Table()


def default_folder(environment: Mapping[str, str]) -> Path:
    """Where a user's measurements are kept, by the XDG Base Directory rules."""
    root = environment.get("XDG_CACHE_HOME", "")
    cache = Path(root) if os.path.isabs(root) else Path.home() / ".cache"
    return cache / "transload" / "kernels" / "autotune"


def encode(device: Device, table: Table) -> bytes:
    """A file's bytes."""
    cells = [
        {
            **{"op": cell.op, "run_bytes": cell.run_bytes, "num_runs": cell.num_runs},
            "implementation": cell.best.implementation,
            "parameters": dict(cell.best.parameters),
            "seconds": cell.seconds,
        }
        for cell in table.cells
    ]
    whole = {"format": FORMAT, "device": device._asdict(), "cells": cells}
    return json.dumps(whole, indent=1, sort_keys=True, allow_nan=False).encode()


def decode(data: bytes, device: Device) -> Table:
    """A file's table.

    Raises:
        BadArgument: Not a file of this format, or of another device; says what is wrong where.
    """
    if len(data) > MAX_FILE_BYTES:
        raise BadArgument(f"more than {MAX_FILE_BYTES} bytes")
    try:
        whole = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadArgument(f"not JSON: {error}") from error
    fields = _fields("file", whole, ("format", "device", "cells"))
    if fields["format"] != FORMAT:
        raise BadArgument(f"format: expected {FORMAT}, got {fields['format']!r}")
    of_device = Device(**_fields("device", fields["device"], Device._fields))
    if of_device != device:
        raise BadArgument(f"device: measured on {of_device}, this is {device}")
    cells = fields["cells"]
    if not isinstance(cells, list) or len(cells) > MAX_CELLS:
        raise BadArgument(f"cells: expected a list of at most {MAX_CELLS}")
    return Table(_cell(f"cells[{index}]", cell) for index, cell in enumerate(cells))


def _cell(path: str, raw: object) -> Cell:
    names = ("op", "run_bytes", "num_runs", "implementation", "parameters", "seconds")
    fields = _fields(path, raw, names)
    op, implementation, seconds = fields["op"], fields["implementation"], fields["seconds"]
    if not isinstance(op, str) or op not in OPERATIONS:
        raise BadArgument(f"{path}.op: no operation is called {op!r}")
    if not isinstance(implementation, str) or not implementation:
        raise BadArgument(f"{path}.implementation: expected a name, got {implementation!r}")
    if not isinstance(seconds, float) or not 0 < seconds < math.inf:
        raise BadArgument(f"{path}.seconds: expected a positive number, got {seconds!r}")
    run_bytes = _whole(f"{path}.run_bytes", fields["run_bytes"], range(1, 1 << 48))
    num_runs = _whole(f"{path}.num_runs", fields["num_runs"], range(1, 1 << 48))
    parameters = fields["parameters"]
    if not isinstance(parameters, dict):
        raise BadArgument(f"{path}.parameters: expected an object")
    best = Candidate(implementation, _parameters(f"{path}.parameters", parameters))
    return Cell(op, run_bytes, num_runs, best, seconds)


def _parameters(path: str, raw: Mapping[str, Any]) -> tuple[tuple[str, int], ...]:
    for name, value in raw.items():
        if name not in PARAMETERS:
            raise BadArgument(f"{path}: no parameter is called {name!r}")
        _whole(f"{path}.{name}", value, PARAMETERS[name])
        if name != "num_programs" and value & (value - 1):
            raise BadArgument(f"{path}.{name}: expected a power of two, got {value}")
    return tuple(sorted(raw.items()))


def _fields(path: str, raw: object, names: Sequence[str]) -> dict[str, Any]:
    """An object with exactly these fields."""
    if not isinstance(raw, dict):
        raise BadArgument(f"{path}: expected an object, got {type(raw).__name__}")
    if raw.keys() != set(names):
        odd = ", ".join(sorted(raw.keys() ^ set(names)))
        raise BadArgument(f"{path}: fields missing or not known: {odd}")
    return raw


def _whole(path: str, raw: object, of: range) -> int:
    if not isinstance(raw, int) or isinstance(raw, bool) or raw not in of:
        raise BadArgument(f"{path}: expected {of.start}..{of.stop - 1}, got {raw!r}")
    return raw


def _fingerprint(device: Device) -> str:
    """Eight hex digits that differ where the devices do; FNV-1a of the text."""
    number = 0x811C9DC5
    for byte in "\0".join(device).encode():
        number = (number ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"{number:08x}"


def measure(
    op: str,
    sizes: Iterable[tuple[int, int]],
    candidates: Sequence[Candidate],
    call_of: Callable[[Candidate, int, int], Callable[[], object]],
    stopwatch: Stopwatch,
    rounds: int = 5,
) -> Table:
    """Find the fastest candidate for each size.

    Args:
        op: Name of the operation.
        sizes: (bytes of a run, number of runs) each.
        candidates: Who may do it; one that raises `KernelError` ends the measurement.
        call_of: Makes the call to measure, of a candidate at a size: its buffers are ready.
        stopwatch: Measures a call.
        rounds: Times that each is measured, in turns, so that what disturbs a while disturbs
            all; the least counts. Each call is made once before, to compile and to warm.

    Returns:
        A cell for each size.
    """
    cells = []
    for run_bytes, num_runs in sizes:
        calls = [call_of(candidate, run_bytes, num_runs) for candidate in candidates]
        for call in calls:
            call()
        least = [math.inf] * len(calls)
        for _ in range(rounds):
            for index, call in enumerate(calls):
                least[index] = min(least[index], stopwatch.seconds(call))
        seconds = min(least)
        cells.append(Cell(op, run_bytes, num_runs, candidates[least.index(seconds)], seconds))
    return Table(cells)
