"""One process that looks after one run: its stages, their ends, and what they may do about a hang."""
