"""Pages of the annex share."""
