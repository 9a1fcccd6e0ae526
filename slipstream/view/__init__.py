"""Eyes on runs: terminal, web page, report. They only read the run folder, and may start late or die."""
