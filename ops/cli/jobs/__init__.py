"""Commands that compute texts: the rows of files, or one text."""
