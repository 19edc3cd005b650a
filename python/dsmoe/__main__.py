"""The command line: ``dsmoe`` and ``python -m dsmoe``."""

import signal
import sys

from . import _engine


def main() -> int:
    # Signals are the command's, as in the program: Python's handlers would wait for it to return.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    return _engine.run_command_line(["dsmoe", *sys.argv[1:]])


if __name__ == "__main__":
    sys.exit(main())
