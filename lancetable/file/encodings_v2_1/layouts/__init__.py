"""Page layouts: how the values and levels of a page are arranged in its buffers."""
