"""`tachograph collect`: polling threads, one committing writer, children that analyze."""
