"""What `transload` says of itself; needs none of the router's packages."""

from transload_router import __version__

USAGE = """usage: transload COMMAND [options]

commands:
  serve         serve one OpenAI-compatible endpoint in front of prefill and decode engines
  check-config  check the same options, print the settings in force, and end
  abi           say what KV caches' bytes mean, whether two convert, and what would be moved
  wire          put the wire protocol's vectors to an implementation
  demo          two small engines and the router on this machine, and what happens between them
  version       print the version

`transload COMMAND --help` lists a command's options.
"""


def say(command: str) -> str | None:
    """What a command prints that only asks for words; None where it asks for more."""
    if command in ("version", "--version"):
        return f"transload {__version__}\n"
    return USAGE if command in ("help", "--help", "-h") else None
