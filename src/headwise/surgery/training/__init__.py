"""Short distillation, one concern a file; `headwise.surgery.uptrain` runs all of it."""
