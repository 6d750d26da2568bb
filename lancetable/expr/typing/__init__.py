"""Types of expressions: name resolution, coercion and constant folding."""
