"""Messages generated from protos/ by scripts/gen_protos; not edited by hand."""
