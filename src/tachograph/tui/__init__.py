"""The screens of `tachograph watch`: each shows a `View` and computes nothing."""
