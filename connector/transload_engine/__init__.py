"""Engines of our own. Today: the simulated engine, `python -m transload_engine --simulate`."""
