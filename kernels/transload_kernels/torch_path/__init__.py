"""The operations as vectorised torch: on every device, without a compiler."""

from transload_kernels.torch_path.kernels import TorchKernels

__all__ = ["TorchKernels"]
