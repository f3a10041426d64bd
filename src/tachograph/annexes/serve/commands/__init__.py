"""Commands of the annex serve."""
