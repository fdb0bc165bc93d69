"""What does each command do? Parsing is in cli.py; whatever a host could be asked is asked of one."""
