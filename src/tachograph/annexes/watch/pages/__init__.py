"""Pages that the annex watch adds to what is served."""
