"""Which heads go, what that costs, and how the others make up for it; `headwise.surgery.prune` removes them."""
