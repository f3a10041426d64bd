"""Pages and REST API of a lake: `tachograph serve`."""
