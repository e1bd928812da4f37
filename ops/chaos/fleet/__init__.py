"""The worker under test, its engines, and its model."""
