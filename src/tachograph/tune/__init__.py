"""Thresholds of the job classes for a site: from labelled jobs, or proposed from unlabelled history.

labels  ->  split  ->  search over settings, scored on one part  ->  scores on the other part, and a configuration
"""
