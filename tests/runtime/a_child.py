"""What a child does in tests of processes: raise, or wait for ever."""

from __future__ import annotations

import sys
import time

if __name__ == "__main__":
    if sys.argv[1] == "raise":
        raise ValueError("no track")
    print("waiting", flush=True)
    time.sleep(600)
