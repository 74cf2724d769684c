"""What the vectors of `kvwire/1` are made of; nothing here uses `transload_abi`."""
