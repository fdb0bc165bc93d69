"""Real processes that hang, stop, spin or break in a known way: what the watchdog is tried on."""
