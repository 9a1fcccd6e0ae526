"""Parts of a run in other processes: workers that collect, evaluators, and learners in step."""
