"""The `transload` command, also as `python -m transload_router`."""

import sys

from transload_router.usage import say


def run() -> int:
    """Run the command; the exit status.

    `abi`, `wire`, `demo`, help and the version come before anything of the router is imported: they
    work without its packages, or say themselves which they need.
    """
    if sys.argv[1:2] == ["abi"]:
        from transload_abi.cli import main as run_abi

        return run_abi(sys.argv[2:])
    if sys.argv[1:2] == ["wire"]:
        from transload_abi.wire.cli import main as run_wire

        return run_wire(sys.argv[2:])
    if sys.argv[1:2] == ["demo"]:
        from transload_engine.demo.command import main as run_demo

        return run_demo(sys.argv[2:])
    if words := say(*sys.argv[1:2] or [""]):
        print(words, end="")
        return 0
    try:
        from transload_router.cli import main
    except ModuleNotFoundError as error:
        print(
            f"transload: the package {error.name} is missing; the router is installed with "
            "pip install 'transload[router]'",
            file=sys.stderr,
        )
        return 1
    return main()


if __name__ == "__main__":
    sys.exit(run())
