"""What `headwise verify` measures of two models, one kind of thing a file; `headwise.bench.verify` runs all of it.

A is the model as it was, B what was made of it; both read the same rows, and differences are B minus A.
"""
