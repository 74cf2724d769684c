"""The real vLLM on this machine's CPU, with a tiny model: for the engine tests and the demo."""
