"""The version of this program, for reports, requests and the package."""

__version__ = "0.1.0"
