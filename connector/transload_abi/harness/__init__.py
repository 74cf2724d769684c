"""How conformance vectors are put to an implementation, ours or a stranger's: `HARNESS.md`.

Knows nothing of descriptors or of the wire: what is asked is `transload_abi.vectors`' and
`transload_abi.wire.conformance`'s.
"""
