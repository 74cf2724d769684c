"""The stage's memory between a GPU and the network: slots on both sides, streams and events.

On the way out: `gathering` queues the kernel on one stream and the copy to pinned memory on
another, and returns; `sending` waits for the copy of its chunk and sends. So the kernel of one
chunk, the copy of the one before and the sending of the one before that run at the same time.
On the way in: `receiving` fills pinned memory; `scattering` queues copy and kernel and waits for
both, while the next chunk is received.
"""

from typing import Any, Final, Self

import torch
from torch import Tensor

from transload_kernels.pipeline.chunks import Chunk, slot_bytes
from transload_kernels.pipeline.run import Step
from transload_kernels.pipeline.stage import CpuStage, Work

_CUDA: Final[Any] = torch.cuda


class GpuStage:
    """Slots on a GPU and their twins in pinned memory.

    The two streams begin after what is queued on the current stream when the stage is made: blocks
    that are written there before are gathered as they then are. A stage is entered (`with`) for
    one transfer, and left when nothing that it queued is running any more, also after an error.

    Args:
        device: The GPU.
        budget_bytes, depth: As given to `plan_chunks`; taken on the GPU and on the host.
        cuda: `torch.cuda`, or what does as if.
    """

    def __init__(
        self, device: torch.device, budget_bytes: int, depth: int, cuda: Any = _CUDA
    ) -> None:
        size = slot_bytes(budget_bytes, depth)
        self._cuda = cuda
        self._host = CpuStage(budget_bytes, depth, pinned=device.type == "cuda")
        self._slots = [torch.empty(size, dtype=torch.uint8, device=device) for _ in range(depth)]
        self._kernels, self._copies = cuda.Stream(device), cuda.Stream(device)
        self._copied = [cuda.Event() for _ in range(depth)]
        for stream in (self._kernels, self._copies):
            stream.wait_stream(cuda.current_stream(device))

    def gathering(self, gather: Work) -> Step:
        """A step that queues `gather` into the chunk's slot on the GPU, then a copy to the host."""

        def step(chunk: Chunk) -> None:
            slot = self._slot(chunk)
            with self._cuda.stream(self._kernels):
                gather(chunk, slot)
            self._copies.wait_stream(self._kernels)
            with self._cuda.stream(self._copies):
                self._host.slot(chunk).copy_(slot, non_blocking=True)
                self._copied[chunk.slot].record(self._copies)

        return step

    def sending(self, send: Work) -> Step:
        """A step that waits for the chunk on the host, and sends it from pinned memory."""

        def step(chunk: Chunk) -> None:
            self._copied[chunk.slot].synchronize()
            send(chunk, self._host.slot(chunk))

        return step

    def receiving(self, receive: Work) -> Step:
        """A step that receives a chunk into pinned memory."""
        return self._host.step(receive)

    def scattering(self, scatter: Work) -> Step:
        """A step that copies the chunk to the GPU, and scatters it from there."""

        def step(chunk: Chunk) -> None:
            slot = self._slot(chunk)
            with self._cuda.stream(self._kernels):
                slot.copy_(self._host.slot(chunk), non_blocking=True)
                scatter(chunk, slot)
                self._copied[chunk.slot].record(self._kernels)
            self._copied[chunk.slot].synchronize()

        return step

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._kernels.synchronize()
        self._copies.synchronize()

    def _slot(self, chunk: Chunk) -> Tensor:
        return self._slots[chunk.slot][: chunk.num_bytes]
