# mypy: disable-error-code="import-untyped,no-untyped-def,no-untyped-call,untyped-decorator"
"""What all kernels do with an index: take it apart into loops, without dividing.

A row's number counts the innermost loop fastest: row = ((i * c0 + l0) * c1 + l1) * ... An integer
division by a count that is no constant costs a GPU some twenty instructions, so the host sends
a multiplier and a shift with each count (`launch.divisor`): exact for numbers below 2 ** 31.

Kernels declare buffers, whose bytes have any type, as pointers to fp32, and cast them to integers
before use: what the compiler is told about alignment it is told of the cast, since Triton takes no
hints about an argument, and a cast to the declared type would be no operation.
"""

import triton
import triton.language as tl


@triton.jit
def divide(number, multiplier, shift):
    """Quotient of a number below 2 ** 31 by the divisor that made multiplier and shift."""
    wide = number.to(tl.uint32).to(tl.uint64) * multiplier.to(tl.uint32).to(tl.uint64)
    return (wide >> (shift + 31).to(tl.uint64)).to(tl.int64)


@triton.jit
def peel(number, count, multiplier, shift):
    """Take the innermost loop off a row's number: what is left, and the loop's index."""
    rest = divide(number, multiplier, shift)
    return rest, number - rest * count.to(tl.int64)
