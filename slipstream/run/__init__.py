"""A run: its loop, the parts the loop calls, its checkpoints, its metrics and its folder."""
