"""Replicas that learn together: what they exchange, how it is merged, and how little is taken on trust."""
