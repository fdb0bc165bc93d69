"""How do the hidden states come about that the drafter reads, and do they fit their quota?"""
