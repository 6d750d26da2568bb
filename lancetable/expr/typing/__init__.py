"""Types of expressions: signatures, coercion and constant folding."""
