"""Sources: each reads one format and yields chunks of contract columns without guessing.

A source is added by one file and one line in `registry.SOURCES`.
"""
