"""Makes the conformance vectors of the KV ABI, with nothing that reads a descriptor."""
