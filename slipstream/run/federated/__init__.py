"""A run in a federation: as a client, with what its scenario says of rounds; distillation; replicas on one machine."""
