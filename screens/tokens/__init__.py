"""The room of supervised tokens."""
