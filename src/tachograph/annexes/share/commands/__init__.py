"""Commands of the annex share."""
