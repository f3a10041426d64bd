"""The judge: one ordered tuple of checks in families, scores, workload and health, waste; pure
functions.
"""
