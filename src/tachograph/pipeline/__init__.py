"""From samples and accounting in the lake to summaries, minutes and findings beside them: attribute, reduce, summarize."""
