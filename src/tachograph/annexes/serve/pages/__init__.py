"""Pages, one file each: parameters, and the values of the template of that name."""
