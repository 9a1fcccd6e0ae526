"""Judging what was learned: tables with intervals, games between policies, changed worlds."""
