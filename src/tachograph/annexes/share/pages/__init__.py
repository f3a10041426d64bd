"""Pages that the annex share adds to what is served."""
