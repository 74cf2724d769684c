"""Simulated engines as others see them: HTTP, events over ZMQ, handoffs between engines."""
