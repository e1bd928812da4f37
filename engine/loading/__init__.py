"""Models ready to run: read from a directory or by name, and put on the device that is available."""
