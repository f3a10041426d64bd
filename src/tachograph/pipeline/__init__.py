"""The analysis: attribute samples to jobs, reduce them, summarize and judge jobs."""
