"""Endpoints of the REST API: each module lists its own as ENDPOINTS."""
