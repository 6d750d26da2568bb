"""The nouns of the format: frozen values with from_proto / to_proto, and the rules for names. No I/O."""
