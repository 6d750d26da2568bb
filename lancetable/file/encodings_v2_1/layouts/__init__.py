"""Page layouts: arrangements of the values and levels of a page in its buffers."""
