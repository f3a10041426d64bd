"""Sources: each reads one format and yields chunks of contract columns. It never guesses a value.

A source is added by one file and one line in `registry.SOURCES`.
"""
