"""Relayout and transfer at the same time, in chunks through a bounded stage of memory."""

from transload_kernels.pipeline.chunks import Chunk, plan_chunks
from transload_kernels.pipeline.gpu import GpuStage
from transload_kernels.pipeline.run import Cancelled, Pipeline
from transload_kernels.pipeline.schedule import Schedule
from transload_kernels.pipeline.stage import CpuStage, as_memoryview

__all__ = [
    "Cancelled",
    "Chunk",
    "CpuStage",
    "GpuStage",
    "Pipeline",
    "Schedule",
    "as_memoryview",
    "plan_chunks",
]
