"""The room of all runs."""
