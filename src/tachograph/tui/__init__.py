"""The screens of `tachograph watch`. They show a `View` and compute nothing that a table or a page would not show."""
