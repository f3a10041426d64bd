"""The analysis: from what is in the lake to summaries, minutes and findings of every job that new data touch."""

from tachograph.analyze.run import AnalysisReport, analyze

__all__ = ["AnalysisReport", "analyze"]
