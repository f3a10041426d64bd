"""`tachograph collect`: a thread per source polls, one writer commits, children analyze and
compact.
"""
