"""What is more than one run: sweeps, and where their trials run."""
