"""A Llama-family model in plain torch, with a paged cache in any placement of a descriptor.

`runner.TorchRunner` is the way in. Knows no queue and no socket.
"""
