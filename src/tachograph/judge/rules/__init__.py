"""The rule language: documents, grammar, types, patterns, and the catalogue of shipped rules."""
