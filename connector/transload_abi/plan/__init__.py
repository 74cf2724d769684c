"""From two descriptors and block lists to the fewest strided copies."""
