"""The room of incidents."""
