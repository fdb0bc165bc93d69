"""The room of logs."""
