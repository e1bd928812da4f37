"""Commands for development: the demo, a broker, and a description of the topics."""
