"""Parts of Markdown files that the software makes: tables of kept runs, pages of reference. Runs from a checkout."""
