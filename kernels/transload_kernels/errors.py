"""What can be wrong with a call of a kernel, and who has to mend it.

::

    KernelError
    ├── BadArgument      the caller: shapes, dtypes, offsets beyond a buffer; nothing was written
    ├── Unsupported      no implementation can do this on this device, or the one asked for cannot
    └── BuildFailed      the compiler that is there could not make the kernels; says what it said
"""


class KernelError(ValueError):
    """Root of all errors of this package."""


class BadArgument(KernelError):
    """An argument cannot be; the message names it. Nothing was written."""


class Unsupported(KernelError):
    """The implementation that was asked for cannot do this here."""


class BuildFailed(KernelError):
    """A compiler was found and failed; the message ends with its last lines."""
