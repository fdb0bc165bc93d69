"""How is a drafter taught: on everything at once, or in turns with extraction?"""
