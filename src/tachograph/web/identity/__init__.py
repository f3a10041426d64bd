"""Who a request is from: one file per way to prove it."""
