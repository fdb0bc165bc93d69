"""The loop that watches: finds the subject, reads its logs, asks its server, takes samples, and escalates."""
