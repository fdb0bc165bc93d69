"""What may be done about a conviction, how often, and moving a lock out of the way that nobody holds."""
