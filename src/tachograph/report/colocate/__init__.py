"""Which jobs of a lake could share a GPU: one structured report; text, JSON and CSV show its numbers."""
