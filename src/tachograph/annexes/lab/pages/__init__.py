"""Pages that the annex lab adds to what is served."""
