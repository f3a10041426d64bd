"""Pages, one file each: its parameters, and what its template of the same name shows."""
