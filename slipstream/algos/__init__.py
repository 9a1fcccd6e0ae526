"""Learning algorithms: one page each, no base class; the registry finds them by the `kind` of their config."""
