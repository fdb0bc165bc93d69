"""How does eagle3ops get onto a host that does not have it?"""
