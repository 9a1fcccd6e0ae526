"""The terminal: a run as it goes, and the loop held still to look into its worlds."""
