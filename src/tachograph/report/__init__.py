"""Reports: what to say about jobs, as structured values, and renderers that show the same numbers everywhere."""
