"""The room about the wiring."""
