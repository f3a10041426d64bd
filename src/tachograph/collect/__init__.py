"""Collecting: one process that polls every configured source, lands what came, analyzes and compacts.

A thread per source reads and hands chunks over; one writer lands them; the main thread looks after the children that
analyze and compact, after the status file and the watchdog. What there is to know stands in one `Journal`, from which
the status file and the metrics are made.
"""
