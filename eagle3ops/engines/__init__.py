"""Inference engines: argv, readiness, capture, metrics, conventions."""
