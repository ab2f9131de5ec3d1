"""Reshaping heads: exact rewrites, pruning, sharing keys and values, re-training, and saving for other tools."""
