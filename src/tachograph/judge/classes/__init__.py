"""Job classes from minute series: characteristics, windows, votes, verdicts."""
