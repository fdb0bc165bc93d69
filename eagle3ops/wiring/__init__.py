"""Proof that training and serving feed the drafter the same tensors."""
