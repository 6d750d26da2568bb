"""Static analysis of expressions: columns used, conjuncts, pruning, nullability."""
