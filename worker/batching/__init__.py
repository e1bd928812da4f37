"""From sequences to results: single flight, the lane driver, failures isolated."""
