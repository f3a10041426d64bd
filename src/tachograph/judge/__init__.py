"""The judge: checks in families, scores, workload, health, waste; pure functions."""
