"""A whole bulk job beside the engine alone."""
