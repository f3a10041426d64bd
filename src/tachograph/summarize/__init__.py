"""From accumulators to one row per job."""
