"""How is a host reached by SSH, and how sure is it that it is the right one?"""
