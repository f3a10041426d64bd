"""Performance-pattern rules: their language, the catalogue, and what comes of running them over jobs."""
