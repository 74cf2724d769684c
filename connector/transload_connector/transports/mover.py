"""What a reader asks holders for, and how the bytes that come become blocks of its own.

Knows nothing of streams: whoever has them sends a `ReadPlan`'s message, receives its payload and
lands it here. A mover may be used by several threads at once; no two plans of a request write the
same bytes.

**Theory.** Descriptors are compiled once into *parts*: a read each, and a plan from its payload to
the destination (`staging` says what a payload is). A request then names block lists alone. The
source's block ids do not matter here, so its lists are counted by positions, as in a read.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple, TypeAlias

import torch
from msgspec.structs import replace

from transload_abi.canonical import canonical
from transload_abi.errors import PlanError
from transload_abi.plan import Batch, Blocks, Cover, Plan
from transload_abi.types import Descriptor
from transload_abi.wire.messages import Read, Table
from transload_connector.transports.kernel_calls import Pools
from transload_connector.transports.kernel_calls_convert import carry_out
from transload_connector.transports.kernel_calls_route import Route
from transload_connector.transports.mover_chunks import Chunk, chunks
from transload_connector.transports.mover_parts import CHUNK_BYTES, Part, parts_of
from transload_connector.transports.staging import POOL
from transload_kernels import dispatch

Payload: TypeAlias = torch.Tensor | bytes | bytearray | memoryview
"""Bytes of a read: flat uint8 memory. Nothing of it is kept."""


class Request(NamedTuple):
    """Where one request is.

    Attributes:
        sources: Of each source the tables of its lease; empty where nothing is taken of it.
        dst: Block ids by table of the destination, aligned at their tail.
        num_tokens: Of the request.
        first_token: The first that the destination wants; begins one of its blocks.
        num_encoder_tokens: What groups of kind `cross` count, None: as all others do.
    """

    sources: Sequence[Sequence[Table]]
    dst: Mapping[int, Sequence[int]]
    num_tokens: int
    first_token: int = 0
    num_encoder_tokens: int | None = None


class ReadPlan(NamedTuple):
    """One read of a request, and what becomes of it; of the mover that made it alone.

    Attributes:
        source: Number of the source to read from.
        part: Number of the mover's part.
        num_bytes: Of the payload.
        is_direct: Whether the payload may be received straight into the destination: `sinks`.
        chunk: Blocks that are read, and what is moved.
        template: The message, but for what `message` adds.
    """

    source: int
    part: int
    num_bytes: int
    is_direct: bool
    chunk: Chunk
    template: Read

    def message(
        self, number: int, handoff: str, *, stream: int = 0, checksums: bool = False
    ) -> Read:
        """The request to the holder.

        Args:
            number: Its id.
            handoff: Open in the session.
            stream: On which data come.
            checksums: Whether each data frame is to have one.
        """
        return replace(
            self.template,
            id=number,
            handoff=handoff,
            blocks=self.chunk.blocks,
            stream=stream,
            checksums=checksums,
        )


class Mover:
    """Sources and a destination, compiled; serves any number of requests.

    Attributes:
        dst: The destination's descriptor, canonical.
        parts: The reads that each request comes to, before they are cut into chunks.
    """

    def __init__(
        self,
        dst: Descriptor,
        parts: Sequence[Part],
        shares: Sequence[tuple[int, int]],
        chunk_bytes: int,
    ) -> None:
        self.dst = dst
        self.parts = tuple(parts)
        self._shares = tuple(shares)
        self._chunk_bytes = chunk_bytes
        self._pool_bytes = {pool.id: pool.num_bytes for pool in dst.pools}
        self._taken: Counter[Route] = Counter()
        self._counting = threading.Lock()

    @classmethod
    def compile(
        cls,
        sources: Descriptor | Sequence[Descriptor],
        dst: Descriptor,
        *,
        allows_lossy: bool = False,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> "Mover":
        """Choose who gives what, ask for it in the best form, and plan what becomes of it.

        Args:
            sources: Holders' descriptors, checked; their order is that of `Request.sources`.
            dst: The reader's, checked.
            allows_lossy: Whether numbers may be rounded.
            chunk_bytes: Of the payload of one read, unless one layer of one block is longer.

        Raises:
            Refused: A source cannot be converted, its bytes cannot be asked for, or something is
                missing; field and reason are named.
            LimitExceeded: As `Cover.compile`.
        """
        each = [sources] if isinstance(sources, Descriptor) else list(sources)
        each = [canonical(source) for source in each]
        dst = canonical(dst)
        cover = Cover.compile(each, dst, allow_lossy=allows_lossy)
        parts = [
            part
            for number, (source, taken) in enumerate(zip(each, cover.sources, strict=True))
            if taken is not None
            for part in parts_of(
                number, source, taken, dst, allows_lossy=allows_lossy, chunk_bytes=chunk_bytes
            )
        ]
        return cls(dst, parts, cover.parts, chunk_bytes)

    def reads(self, request: Request) -> list[ReadPlan]:
        """What to ask for, and of whom; in any order.

        Raises:
            PlanError: Lists or counts that do not fit, or blocks that the last token of the request
                sees and the source does not hold; the path names the list.
        """
        if len(request.sources) != len(self._shares):
            raise PlanError(
                f"tables of {len(request.sources)} sources came for {len(self._shares)}", "sources"
            )
        used: dict[int, set[int]] = {}
        found: list[ReadPlan] = []
        for number, part in enumerate(self.parts):
            blocks = Blocks(_positions(request, part), request.dst, *request[2:])
            plan = part.pair.plan_beside(used, blocks, self._shares[part.source])
            for chunk in chunks(plan.batches, max(1, self._chunk_bytes // part.block_bytes)):
                num_bytes = chunk.num_blocks * part.block_bytes
                found.append(
                    ReadPlan(part.source, number, num_bytes, bool(part.sinks), chunk, part.read)
                )
        return found

    def sinks(self, plan: ReadPlan, dst_memory: Pools) -> list[memoryview]:
        """Where the payload of a direct plan is to be received, in its order.

        The views are the destination's own memory: it must not be given to anybody else as long as
        they are written to.

        Args:
            plan: One that `is_direct`.
            dst_memory: All pools that the plan writes, in the CPU's memory.

        Raises:
            PlanError: The plan is none, or a pool is missing, too short, or of a device.
        """
        if not plan.is_direct:
            raise PlanError("its bytes have to be landed", "plan")
        part = self.parts[plan.part]
        views = {}
        for sink in part.sinks:
            pool = self._checked(dst_memory, sink.pool)
            if pool.device.type != "cpu":
                raise PlanError("expected memory of the CPU", f"dst_memory[{sink.pool!r}]")
            views[sink.pool] = memoryview(pool.numpy())
        spans = (
            (sink.pool, sink.offset + block * sink.block_stride, sink.num_bytes)
            for block in _dst_blocks(plan.chunk)
            for sink in part.sinks
        )
        return [views[pool][first : first + size] for pool, first, size in _joined(spans)]

    def land(self, plan: ReadPlan, payload: Payload, dst_memory: Pools) -> None:
        """Make blocks of a payload; of a direct plan's, too, where it was received elsewhere.

        On a GPU it returns when the work is queued; the payload may be used again.

        Args:
            plan: What was read.
            payload: All of it, complete.
            dst_memory: By pool flat uint8 memory, all of one device.

        Raises:
            PlanError: The payload is of another length, or a pool is missing or too short.
        """
        received = _tensor(payload)
        if received.numel() != plan.num_bytes:
            raise PlanError(f"expected {plan.num_bytes} bytes, got {received.numel()}", "payload")
        pools = {
            pool: self._checked(dst_memory, pool)
            for batch in plan.chunk.batches
            for pool in _dst_pools(batch)
        }
        for pool in pools.values():
            received = received.to(pool.device)
        # Addresses are those of a plan, and lengths have been looked at.
        taken = carry_out(
            Plan(plan.chunk.batches),
            {POOL: received},
            pools,
            by_batch=self.parts[plan.part].by_lane,
            checked=False,
        )
        with self._counting:
            self._taken.update(taken)

    @property
    def conversions(self) -> dict[Route, int]:
        """How many conversions (of a role and layer of one payload) have gone which way so far."""
        with self._counting:
            return dict(self._taken)

    def explain(self, device: str = "cpu") -> str:
        """For operators: each part's read, what becomes of it, by whom and why; several lines.

        Args:
            device: Where the destination's memory is, as torch calls it.
        """
        copying = dispatch.choose("relayout_rows", torch.device(device), CHUNK_BYTES)
        converting = dispatch.choose("convert_rows", torch.device(device), CHUNK_BYTES)
        lines = [
            f"copies by {copying.name} ({copying.why})",
            f"conversions that a kernel knows by {converting.name} ({converting.why})",
        ]
        return "\n".join([*lines, *(line for part in self.parts for line in _lines(part))])

    def _checked(self, memory: Pools, pool: str) -> torch.Tensor:
        path = f"dst_memory[{pool!r}]"
        if pool not in memory:
            raise PlanError("no memory for this pool", path)
        if memory[pool].numel() < self._pool_bytes[pool]:
            raise PlanError(
                f"expected {self._pool_bytes[pool]} bytes, got {memory[pool].numel()}", path
            )
        return memory[pool]


def _positions(request: Request, part: Part) -> dict[int, list[int]]:
    """The list of a part's table, its entries numbered by their place in it."""
    most = max(request.num_tokens, request.num_encoder_tokens or 0)
    for table in request.sources[part.source]:
        if table.table != part.table:
            continue
        if table.num_blocks > most:
            # A holder's word: nothing of that length is made before it has been looked at.
            path = f"sources[{part.source}].tables[{table.table}]"
            raise PlanError(f"{table.num_blocks} blocks for {most} tokens", path)
        numbers = list(range(table.num_blocks))
        for first, count in table.null:
            numbers[first : first + count] = [part.null_block] * count
        return {part.table: numbers}
    return {}


def _dst_blocks(chunk: Chunk) -> list[int]:
    """The destination's block of each block of a direct payload."""
    blocks = [0] * chunk.num_blocks
    for batch in chunk.batches:
        for src, dst, count in batch.sequences:
            blocks[src : src + count] = range(dst, dst + count)
    return blocks


def _joined(spans: Iterator[tuple[str, int, int]]) -> Iterator[tuple[str, int, int]]:
    """Pool, first byte and length; neighbours as one."""
    last = next(spans)
    for span in spans:
        if span[:2] == (last[0], last[1] + last[2]):
            last = (*last[:2], last[2] + span[2])
        else:
            yield last
            last = span
    yield last


def _dst_pools(batch: Batch) -> set[str]:
    copied = {template.dst.pool for template in batch.templates}
    converted = {each.side.pool for one in batch.conversions for each in one.dst}
    return copied | converted


def _tensor(payload: Payload) -> torch.Tensor:
    if isinstance(payload, torch.Tensor):
        return payload
    view = memoryview(payload).cast("B")
    # Torch has no tensors that may not be written to.
    return torch.frombuffer(bytearray(view) if view.readonly else view, dtype=torch.uint8)


def _lines(part: Part) -> Iterator[str]:
    read = part.read
    layers = "all layers" if read.layers is None else f"layer positions {_span(read.layers)}"
    heads = "" if read.heads is None else f", heads {_span(read.heads)}"
    how = f"received in {len(part.sinks)} runs of a block" if part.sinks else "staged"
    yield (
        f"source {part.source}, {read.group}, {layers}{heads}: form {read.form}, "
        f"{part.block_bytes} bytes of a block, {how}"
    )
    ways: Counter[tuple[str, Route]] = Counter()
    for family in chain(*part.by_lane):
        each = family.first
        what = f"{each.role}: {each.src_codec} {each.src[0].dtype}"
        ways[f"{what} to {each.dst_codec} {each.dst[0].dtype}", family.route] += len(
            family.src_apart
        )
    for (what, way), count in ways.items():
        yield f"  {what}, {count} times: {way.way}" + (f" ({way.why})" if way.why else "")


def _span(asked: tuple[int, int]) -> str:
    return f"{asked[0]} to {asked[0] + asked[1] - 1}"
