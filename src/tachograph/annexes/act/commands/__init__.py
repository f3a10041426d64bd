"""Commands of the annex act."""
