"""Commands of the annex lab."""
