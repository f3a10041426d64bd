"""Pages of the annex lab."""
