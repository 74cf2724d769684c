"""The reference engine. Empty until the KV ABI it speaks lands."""
