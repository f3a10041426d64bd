"""The version of this program, for reports, requests and the package."""

__version__ = "0.2.0"
