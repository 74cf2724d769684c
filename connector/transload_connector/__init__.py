"""The vLLM connector: ships KV blocks between engines that need not agree on their format."""
