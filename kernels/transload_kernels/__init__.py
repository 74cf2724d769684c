"""Movers and converters of KV blocks. Empty until the planner they serve lands."""
