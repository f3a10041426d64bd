"""Pages of the annex watch."""
