"""The command `slipstream`, also as `python -m slipstream`: only imported where the whole program is ours."""

import signal

# Until `main` listens, Ctrl+C ends the program as SIGTERM and SIGHUP do: at once, for nothing has begun, and without
# the traceback of whatever was being imported.
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

import sys

from slipstream.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
