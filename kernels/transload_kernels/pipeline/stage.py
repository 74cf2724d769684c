"""The stage's memory on the CPU: slots that chunks pass through, made into steps."""

import ctypes
from collections.abc import Callable

import torch
from torch import Tensor

from transload_kernels import arguments
from transload_kernels.errors import BadArgument
from transload_kernels.pipeline.chunks import Chunk, slot_bytes
from transload_kernels.pipeline.run import Step

Work = Callable[[Chunk, Tensor], object]
"""Fills or drains a chunk's slot: uint8 `[chunk.num_bytes]`, valid until the call returns."""


class CpuStage:
    """Slots of plain memory.

    Args:
        budget_bytes, depth: As given to `plan_chunks`.
        pinned: Page-locked memory, for senders that copy from it by DMA; needs a GPU's driver.
    """

    def __init__(self, budget_bytes: int, depth: int, pinned: bool = False) -> None:
        size = slot_bytes(budget_bytes, depth)
        self._slots = [
            torch.empty(size, dtype=torch.uint8, device="cpu", pin_memory=pinned)
            for _ in range(depth)
        ]

    def step(self, work: Work) -> Step:
        """A step that works on the chunk's slot: gather, send, receive or scatter."""
        return lambda chunk: work(chunk, self.slot(chunk))

    def slot(self, chunk: Chunk) -> Tensor:
        """The chunk's part of its slot."""
        return self._slots[chunk.slot][: chunk.num_bytes]


def as_memoryview(buffer: Tensor) -> memoryview:
    """The bytes of a flat uint8 tensor of the CPU, writable; valid as long as the tensor is.

    Raises:
        BadArgument: It is not flat, of another type or on another device.
    """
    arguments.check_buffer("buffer", buffer)
    if buffer.device.type != "cpu":
        raise BadArgument(f"buffer: expected device cpu, got {buffer.device}")
    if not len(buffer):
        return memoryview(bytearray())
    kind = ctypes.c_uint8 * len(buffer)
    return memoryview(kind.from_address(buffer.data_ptr())).cast("B")
