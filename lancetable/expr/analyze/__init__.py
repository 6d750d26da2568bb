"""Static analysis of expressions: columns used, bounds, nullability."""
