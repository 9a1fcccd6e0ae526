"""What a child does in tests of processes: raise, or wait for ever, perhaps after it has announced its payload."""

from __future__ import annotations

import sys
import time

from slipstream.runtime.process import announce

if __name__ == "__main__":
    if sys.argv[1] == "raise":
        raise ValueError("no track")
    if sys.argv[1] == "announce":
        announce(sys.stdin.read())
    print("waiting", flush=True)
    time.sleep(600)
