"""Of what are the rooms made?"""
