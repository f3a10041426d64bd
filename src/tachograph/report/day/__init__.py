"""What a day of shared GPUs came to under each policy: table, JSON, figure."""
