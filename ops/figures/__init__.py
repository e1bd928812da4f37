"""What the Markdown files have from the software: tables of kept runs, and pages of reference. Runs from a checkout."""
