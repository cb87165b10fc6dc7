"""`pulse`, or `python -m pulse_api`: imports the command line, and runs it."""

import sys


def main() -> None:
    """Entry point."""
    try:
        from pulse_api import cli  # here: it takes half a second, in which Ctrl-C may come, too
    except KeyboardInterrupt:
        sys.exit(130)  # `guard.INTERRUPTED`
    cli.main()


if __name__ == "__main__":
    main()
