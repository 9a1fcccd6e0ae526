"""Pure functions over numbers: intervals, tests that may be looked at at any time, strengths of players."""
