"""How bytes of blocks travel between engines: the machines of `transload_abi.wire` over sockets.

`holder_server` serves an engine's blocks, `reader_client` reads another's. Both have one thread for
all of their connections, so they serve engines with an event loop and such without one alike.
"""
