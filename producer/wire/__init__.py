"""Wire format v1: messages, their bytes and their record headers. WIRE.md is the page for other languages."""
