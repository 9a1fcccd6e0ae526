"""Judging what was learned: tables with intervals, sweeps, games between policies."""
