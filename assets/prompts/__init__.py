"""Data that runs need, shipped as package data."""
