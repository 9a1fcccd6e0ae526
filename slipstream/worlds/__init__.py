"""Worlds: the batched contract, the registry, and adapters to and from Gymnasium and PettingZoo."""
