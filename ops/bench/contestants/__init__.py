"""The sides that are measured, one file each: workers as a user starts them, and the alternatives beside them."""
