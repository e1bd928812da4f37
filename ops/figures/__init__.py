"""The tables of kept benchmark and chaos runs in the Markdown files of the repository. Runs from a checkout."""
