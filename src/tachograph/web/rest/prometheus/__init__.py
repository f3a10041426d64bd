"""Endpoints as Prometheus has them, over the series of minutes: what Grafana requests of a data source."""
