"""Sockets: the engines' data path, and what is asked of engines besides."""
