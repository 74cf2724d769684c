"""What engines say of their caches: event bytes to typed events, and each stream's continuity."""
