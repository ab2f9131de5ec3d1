"""How KV heads become one: which, in which basis, and the fit of a layer; `surgery.convert` walks the layers."""
