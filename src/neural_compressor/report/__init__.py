"""Reports of a tuning run: progress and tables on the terminal, and the HTML report."""
