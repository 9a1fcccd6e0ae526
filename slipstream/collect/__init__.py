"""Collectors: who acts for whom, rollouts, evaluation episodes."""
