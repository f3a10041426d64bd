"""Reports: one report object per question; text, JSON and page show the same numbers."""
