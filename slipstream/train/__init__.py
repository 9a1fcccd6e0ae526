"""The experiment: its loop, its checkpoints, its metrics and the folder it leaves."""
