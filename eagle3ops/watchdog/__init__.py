"""What went wrong, how is that known, and what can be done about it? Signals become incidents here."""
