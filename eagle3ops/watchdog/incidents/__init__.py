"""What went wrong, or is about to: found in what runs recorded, in the machine, and by the watchdog itself."""
