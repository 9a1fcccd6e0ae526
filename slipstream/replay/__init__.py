"""Replay buffers: the ring in memory, the service that several runs share, and their rows on disk."""
