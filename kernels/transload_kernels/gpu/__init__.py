"""The operations as Triton kernels, for NVIDIA and AMD GPUs; importing it needs Triton."""

from transload_kernels.gpu.kernels import TritonKernels

__all__ = ["TritonKernels"]
