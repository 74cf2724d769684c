"""Vectors of the wire protocol, put to an implementation: `tests/vectors/wire/README.md`.

`checks` and `sessions` judge, `ours` answers for this implementation.
"""
