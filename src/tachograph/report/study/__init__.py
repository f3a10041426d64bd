"""The study of a system: its data set, its figures with their numbers, the answers, as pages and files."""
