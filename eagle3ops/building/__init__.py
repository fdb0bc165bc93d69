"""Kernels from source: can they be built here, how far is the build, and is what Python imports what was built?"""
