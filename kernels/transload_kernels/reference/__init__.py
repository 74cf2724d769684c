"""The operations as plain loops: the specification that every other implementation equals."""

from transload_kernels.reference.kernels import ReferenceKernels

__all__ = ["ReferenceKernels"]
