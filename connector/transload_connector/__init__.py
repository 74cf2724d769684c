"""The vLLM connector. Empty until the KV ABI it stands on lands."""
