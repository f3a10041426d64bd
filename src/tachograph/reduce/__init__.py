"""The heart: one pass over sorted samples, every accumulator at once, results that add up.

partition (sorted rows of some nodes, one day)  ->  Reduced (segments, windows, minutes)  ->  merge
minutes  ->  a data file that lands with its day, and timelines for the rules
"""
