"""The screens of `tachograph watch`: each shows a `FleetView` and computes nothing."""
