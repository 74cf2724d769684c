"""From a request's members to the token ids that the engine will read."""
