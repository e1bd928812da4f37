"""The command line `penstock`."""
