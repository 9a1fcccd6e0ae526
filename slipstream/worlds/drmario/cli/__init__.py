"""The verbs of `slipstream drmario`."""
