"""What went wrong, what shows it, and what can be done about it?"""
