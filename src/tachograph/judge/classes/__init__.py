"""Job classes from series of minutes: characteristics, windows, votes, verdicts; compiled
inside.
"""
