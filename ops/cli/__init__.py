"""The command line: `penstock`."""
