"""The room of GPUs and processes."""
