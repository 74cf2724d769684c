"""The operations on a CPU, in C++ that the machine's own compiler builds."""

from transload_kernels.cpu.kernels import CpuKernels

__all__ = ["CpuKernels"]
