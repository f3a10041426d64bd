"""Prometheus metrics: which counter a metric is, which GPU a set of labels names, and the text they are written in."""
