"""From a transaction to the next version of a table: conflicts, rebase, building the manifest, the commit loop."""
