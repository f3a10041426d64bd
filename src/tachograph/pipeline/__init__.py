"""From samples and accounting to summaries, minutes and findings: attribute, reduce, summarize,
and the run.
"""
