"""Processes, links between them, and shared memory: how a run works outside its own thread."""
