"""The room about one run."""
