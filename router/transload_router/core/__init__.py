"""Decisions over plain values: no sockets, clocks or randomness of their own."""
