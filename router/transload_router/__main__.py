"""The `transload` command, also as `python -m transload_router`."""

import sys


def run() -> int:
    """Run the command; the exit status."""
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
