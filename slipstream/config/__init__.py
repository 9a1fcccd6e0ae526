"""The frozen schema of scenarios, and how YAML becomes one. A world's own fields are in its package."""
