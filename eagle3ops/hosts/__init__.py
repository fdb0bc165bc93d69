"""How to reach the machine that a run lives on."""
