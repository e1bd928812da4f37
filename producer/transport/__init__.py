"""Records out, replies in: acknowledged sends, correlation of answers, calls that share records."""
