"""Commands of the annex watch."""
