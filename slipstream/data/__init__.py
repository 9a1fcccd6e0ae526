"""Typed data that travels from collectors to learners: rollouts, transitions, replay, datasets."""
