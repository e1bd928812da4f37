"""The member of the group: its assignment, and the fetches that hand out the records of it."""
