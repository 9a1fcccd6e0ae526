"""Learning algorithms, one page each."""
