"""A fleet of engines in simulated time, driven by the router's own core."""
