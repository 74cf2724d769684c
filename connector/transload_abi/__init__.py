"""The KV ABI: what the bytes of a KV cache mean. Empty until its specification lands."""
