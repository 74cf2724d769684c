"""The wire protocol `kvwire/1`: how a runtime reads another's blocks, told in values and bytes.

Knows no sockets, no clocks and no memory: bytes and the time are passed in, bytes and events come
out. `connector/WIRE.md` specifies it for strangers.
"""
