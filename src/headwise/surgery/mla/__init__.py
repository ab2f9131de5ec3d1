"""Grouped heads as multi-head latent attention: exactly at full rank, by their best common factors below it."""
