"""The demonstration: two engines of this package, a router, and what happened between them."""
