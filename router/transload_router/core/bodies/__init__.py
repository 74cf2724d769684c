"""What the router reads and rewrites in request bodies, and how."""
