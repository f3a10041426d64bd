"""The lake: Delta Lake tables in one directory or object store, readable by anything that reads
Delta.
"""
