"""What Nsight Compute reports say: one structured report; text, JSON, CSV and HTML show its numbers."""
