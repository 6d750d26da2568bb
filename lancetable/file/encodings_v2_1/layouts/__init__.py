"""Page layouts: how the values and levels of a page lie in its buffers."""
